package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
	"github.com/mooncake-sidecar/sidecar/store/embedded/storepb"
)

// inspectBatch bounds the chunks of one question.
const inspectBatch = 1 << 16

// maxExplainRounds bounds the questions that answers lead to: an explanation asks
// for all at first, and then for the few boundaries that an answer points at.
const maxExplainRounds = 8

// Namespace is a namespace of a running lookupd.
type Namespace struct {
	ID   uint32
	Spec kv.NamespaceSpec
}

// Digest names the namespace as daemons' logs do.
func (n *Namespace) Digest() string { return fmt.Sprintf("%x", n.Spec.Digest()) }

// Inspector asks a running lookupd what it has stored. Its questions change
// nothing there.
type Inspector struct {
	rpc   storepb.StoreClient
	close func() error
}

// NewInspector returns an inspector of the lookupd of a runtime directory, empty
// for the default. The caller closes it.
func NewInspector(dir string) (*Inspector, error) {
	rpc, err := dialStore(existingDir(dir))
	if err != nil {
		return nil, err
	}
	return &Inspector{rpc: storepb.NewStoreClient(rpc), close: rpc.Close}, nil
}

// Close ends the connection.
func (i *Inspector) Close() error { return i.close() }

// Namespaces returns the namespaces by number.
func (i *Inspector) Namespaces(ctx context.Context) ([]Namespace, error) {
	reply, err := i.rpc.Namespaces(ctx, &storepb.NamespacesRequest{})
	if err != nil {
		return nil, inspectError(err)
	}
	all := make([]Namespace, len(reply.GetNamespaces()))
	for n, entry := range reply.GetNamespaces() {
		all[n].ID = entry.GetId()
		if err := json.Unmarshal(entry.GetSpec(), &all[n].Spec); err != nil {
			return nil, fmt.Errorf("namespace %d: %w", entry.GetId(), err)
		}
	}
	return all, nil
}

// Chunk is a chunk of a namespace, by the index of the hash that keys it.
type Chunk struct{ Group, HashIndex int }

// Explanation is the coordinator's, with the state of every chunk it is about.
type Explanation struct {
	coordinator.Explanation
	States map[Chunk]embedded.ChunkState
}

// Explain says, group by group, why the hit of a request of numTokens tokens with
// these hashes is as long as it is. The answers are of several moments where the
// daemon is at work meanwhile.
func (i *Inspector) Explain(ctx context.Context, ns *Namespace, hashes kv.HashBlob, numTokens int) (*Explanation, error) {
	if hashes.Len() > 0 && hashes.HashLen() != ns.Spec.HashBytes {
		return nil, fmt.Errorf("hashes of %d bytes; namespace %d has hashes of %d (%s)", hashes.HashLen(), ns.ID, ns.Spec.HashBytes, ns.Spec.HashAlgorithm)
	}
	rules, err := coordinator.New(coordinator.ConfigOf(&ns.Spec))
	if err != nil {
		return nil, err
	}
	// As a lookup of a store that knows nothing: it says what to ask for, the
	// answers are looked at again, until none is missing.
	e := &Explanation{States: map[Chunk]embedded.ChunkState{}}
	for range maxExplainRounds {
		wanted := map[Chunk]bool{}
		exists := func(group, hashIndex int) kv.Existence {
			chunk := Chunk{group, hashIndex}
			state, known := e.States[chunk]
			switch {
			case !known:
				wanted[chunk] = true
				return kv.Unknown
			case state == embedded.ChunkPresent, state == embedded.ChunkOnDisk, state == embedded.ChunkInCluster:
				return kv.Present
			}
			return kv.Absent
		}
		if e.Explanation, err = rules.Explain(numTokens, hashes.Len(), exists); err != nil {
			return nil, err
		}
		if len(wanted) == 0 {
			return e, nil
		}
		for _, ask := range e.Asks {
			for index := range ask.Each {
				if _, known := e.States[Chunk{ask.Group, index}]; !known {
					wanted[Chunk{ask.Group, index}] = true
				}
			}
		}
		if err := i.inspect(ctx, ns, hashes, wanted, e.States); err != nil {
			return nil, err
		}
	}
	return nil, errors.New("BUG: an explanation keeps asking")
}

// inspect asks for the states of chunks and adds them to states.
func (i *Inspector) inspect(ctx context.Context, ns *Namespace, hashes kv.HashBlob, wanted map[Chunk]bool, states map[Chunk]embedded.ChunkState) error {
	request := &storepb.InspectRequest{Namespace: ns.ID}
	var asked []Chunk
	flush := func() error {
		reply, err := i.rpc.Inspect(ctx, request)
		if err != nil {
			return inspectError(err)
		}
		if len(reply.GetStates()) != len(asked) {
			return fmt.Errorf("inspect: %d answers to %d chunks", len(reply.GetStates()), len(asked))
		}
		for n, state := range reply.GetStates() {
			states[asked[n]] = embedded.ChunkState(state)
		}
		request.Groups, request.Hashes, asked = request.Groups[:0], request.Hashes[:0], asked[:0]
		return nil
	}
	for chunk := range wanted {
		hash := hashes.At(chunk.HashIndex)
		request.Groups = append(request.Groups, uint32(chunk.Group))
		request.Hashes = append(request.Hashes, hash[:]...)
		if asked = append(asked, chunk); len(asked) == inspectBatch {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if len(asked) == 0 {
		return nil
	}
	return flush()
}

// inspectError says what a failed call means to an operator.
func inspectError(err error) error {
	switch grpcstatus.Code(err) {
	case codes.Unavailable:
		return fmt.Errorf("%w: %w", ErrNotRunning, err)
	case codes.Unimplemented:
		return fmt.Errorf("this lookupd is of an earlier version, which can't explain: %w", err)
	}
	return fmt.Errorf("store service: %w", err)
}
