package daemon

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded/client"
)

// loadKind is a model whose chunks loaders put.
type loadKind struct {
	name               string
	shardBytes, shards int
	chunks             int // by loader
	kept               int // of them, in a chain, are never dropped
}

var loadKinds = []loadKind{
	{name: "one", shardBytes: 16 << 10, shards: 1, chunks: 300, kept: 64},
	{name: "two", shardBytes: 20 << 10, shards: 2, chunks: 120},
}

func (k *loadKind) spec() *kv.NamespaceSpec {
	s := spec()
	s.Model, s.TP, s.HashBytes = k.name, k.shards, sha256.Size
	s.Groups[0].ShardBytes, s.Groups[0].Shards = k.shardBytes, k.shards
	return s
}

// loadHash names a loader's chunk, and its bytes.
func loadHash(loader, kind, n int) kv.Hash {
	return sha256.Sum256(fmt.Appendf(nil, "%d/%d/%d", loader, kind, n))
}

// fillLoad writes the bytes of a shard, which follow from the hash.
func fillLoad(b []byte, hash kv.Hash, shard int) {
	x := binary.LittleEndian.Uint64(hash[:]) ^ uint64(shard+1)<<32
	for ; len(b) >= 8; b = b[8:] {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		binary.LittleEndian.PutUint64(b, x)
	}
}

// What a loader knows of a chunk.
const (
	knownNot  = iota // it was dropped, and that was answered
	knownHere        // it was stored, and that was answered
	unknown          // a call of it was not answered
)

// loadAnswer is what a loader says after a command.
type loadAnswer struct {
	Error string `json:",omitempty"`
	// Held are puts that are open.
	Held int
	// Published are puts of before the kill that were published after it.
	Published int
	// Calls were answered since the last time. Lost are chunks that were known to be
	// stored and had to be stored again.
	Calls, Lost int
	// Of a look at all chunks: Here of those that Stored were known to be stored are
	// hits, Hits are all hits. Wrong have other bytes than were put, Corrupt do not
	// fit their checksum, Revived were known to be dropped.
	Stored, Here, Hits, Wrong, Corrupt, Revived int
	// Prefix of the first kind's chain are hits.
	Prefix int
}

// loader uses the store as a worker does, and remembers what it was told.
type loader struct {
	number int
	chunks *client.Client
	rng    *rand.Rand
	names  []store.Namespace
	known  [][]uint8 // by kind and chunk
	held   []heldPut
	calls  int
	lost   int
}

type heldPut struct {
	store.PutGrant
	kind, n, shard int
}

// runLoader is the life of a loader's process: commands come line by line.
func runLoader(dir string, number int) int {
	chunks, closeStore, err := connectStore(storeEdge{dir: dir}, nil, quiet)
	if err != nil {
		return 1
	}
	l := &loader{number: number, chunks: chunks, rng: rand.New(rand.NewPCG(uint64(os.Getpid()), 1)), names: make([]store.Namespace, len(loadKinds))}
	for i := range loadKinds {
		l.known = append(l.known, bytes.Repeat([]byte{unknown}, loadKinds[i].chunks))
	}
	commands := make(chan string)
	go func() {
		defer close(commands)
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			commands <- in.Text()
		}
	}()
	if err := l.serve(commands, os.Stdout); err != nil {
		return 1
	}
	if closeStore() != nil {
		return 1
	}
	return 0
}

// serve answers commands; between "run" and the next one it makes load.
func (l *loader) serve(commands <-chan string, out io.Writer) error {
	ctx := context.Background()
	answers := json.NewEncoder(out)
	for command := range commands {
		var a loadAnswer
		var err error
		switch command {
		case "run":
			if err := answers.Encode(a); err != nil {
				return err
			}
			l.run(ctx, commands)
			if err := answers.Encode(a); err != nil {
				return err
			}
			continue
		case "hold":
			a.Held, err = l.hold(ctx)
		case "ready":
			l.scribble()
			err = l.ready(ctx)
		case "finish":
			a.Published, err = l.finish(ctx)
		case "verify":
			err = l.verify(ctx, &a)
		}
		a.Calls, a.Lost, l.calls, l.lost = l.calls, l.lost, 0, 0
		if err != nil {
			a.Error = command + ": " + err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
	return nil
}

// run makes load until a command comes, which must be "stop".
func (l *loader) run(ctx context.Context, commands <-chan string) {
	for {
		changed := l.chunks.Changed()
		err := l.operation(ctx)
		if err == nil {
			l.calls++
		}
		if err == nil || l.chunks.Ready() {
			select {
			case <-commands:
				return
			default:
			}
			continue
		}
		select { // no store
		case <-commands:
			return
		case <-changed:
		}
	}
}

// operation is one of those that a worker does.
func (l *loader) operation(ctx context.Context) error {
	kind := l.rng.IntN(len(loadKinds))
	ns := l.names[kind]
	first, n := l.rng.IntN(loadKinds[kind].chunks), 1+l.rng.IntN(8)
	n = min(n, loadKinds[kind].chunks-first)
	switch l.rng.IntN(8) {
	case 0, 1, 2:
		return l.put(ctx, kind, first, n)
	case 3:
		puts, err := l.start(ctx, kind, first, n)
		if err != nil {
			return err
		}
		return l.chunks.PutRevoke(ctx, ns, tickets(puts))
	case 4:
		return l.drop(ctx, kind, max(first, loadKinds[kind].kept), 3)
	case 5:
		return l.chunks.ReportFailed(ctx, ns, []store.FailedChunk{{Hash: loadHash(l.number, kind, first)}})
	}
	var a loadAnswer
	if err := l.load(ctx, kind, first, n, &a, false); err != nil {
		return err
	}
	if a.Wrong+a.Corrupt > 0 {
		panic(fmt.Sprintf("wrong bytes were served: %+v", a)) // the test sees the process end
	}
	return nil
}

// start asks for places.
func (l *loader) start(ctx context.Context, kind, first, n int) ([]heldPut, error) {
	k := &loadKinds[kind]
	var items []store.PutItem
	for i := first; i < first+n; i++ {
		for shard := range k.shards {
			it := store.PutItem{Hash: loadHash(l.number, kind, i), Depth: uint32(i), Shard: uint32(shard)}
			if i > 0 {
				it.Parent = loadHash(l.number, kind, i-1)
			}
			items = append(items, it)
		}
	}
	grants, err := l.chunks.PutStart(ctx, l.names[kind], store.PutOptions{SaltTag: []string{"", "tenant"}[kind]}, items)
	if err != nil {
		return nil, err
	}
	var puts []heldPut
	for at, g := range grants {
		if g.Status == store.PutGranted {
			p := heldPut{g, kind, first + at/k.shards, at % k.shards}
			if l.known[kind][p.n] == knownHere {
				l.lost++
				l.known[kind][p.n] = unknown
			}
			puts = append(puts, p)
		}
	}
	return puts, nil
}

func tickets(puts []heldPut) []uint64 {
	out := make([]uint64, len(puts))
	for i := range puts {
		out[i] = puts[i].Ticket
	}
	return out
}

// data is the memory of a place.
func (l *loader) data(p store.Place) []byte {
	return l.chunks.Segments()[p.Segment].Data()[p.Offset:][:p.Bytes]
}

// write fills a place and returns its checksum.
func (l *loader) write(p *heldPut) store.PutCommit {
	b := l.data(p.Place)
	fillLoad(b, loadHash(l.number, p.kind, p.n), p.shard)
	return store.PutCommit{Ticket: p.Ticket, Checksum: crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))}
}

// put stores chunks. A chunk whose every put was published is known to be here.
func (l *loader) put(ctx context.Context, kind, first, n int) error {
	puts, err := l.start(ctx, kind, first, n)
	if err != nil {
		return err
	}
	commits := make([]store.PutCommit, len(puts))
	for i := range puts {
		commits[i] = l.write(&puts[i])
		l.known[kind][puts[i].n] = unknown
	}
	published, err := l.chunks.PutEnd(ctx, l.names[kind], commits)
	if err != nil {
		return err
	}
	shards := map[int]int{}
	for i := range puts {
		if published[i] {
			shards[puts[i].n]++
		}
	}
	for n, arrived := range shards {
		if arrived == loadKinds[kind].shards {
			l.known[kind][n] = knownHere
		}
	}
	return nil
}

// drop reports chunks as corrupt, which removes them.
func (l *loader) drop(ctx context.Context, kind, first, n int) error {
	var chunks []store.FailedChunk
	for i := first; i < min(first+n, loadKinds[kind].chunks); i++ {
		l.known[kind][i] = unknown
		chunks = append(chunks, store.FailedChunk{Hash: loadHash(l.number, kind, i), Corrupt: true})
	}
	if err := l.chunks.ReportFailed(ctx, l.names[kind], chunks); err != nil {
		return err
	}
	for i := range chunks {
		l.known[kind][first+i] = knownNot
	}
	return nil
}

// load gets chunks and compares their bytes. With settle, what is found is known
// afterwards.
func (l *loader) load(ctx context.Context, kind, first, n int, a *loadAnswer, settle bool) error {
	k := &loadKinds[kind]
	var items []store.GetItem
	for i := first; i < first+n; i++ {
		for shard := range k.shards {
			items = append(items, store.GetItem{Hash: loadHash(l.number, kind, i), Shard: uint32(shard)})
		}
	}
	results, err := l.get(ctx, l.names[kind], items)
	if err != nil {
		return err
	}
	var refs []uint64
	want := make([]byte, k.shardBytes)
	for i := range n {
		ready := 0
		for shard := range k.shards {
			r := &results[i*k.shards+shard]
			if r.Status != store.GetReady {
				continue
			}
			ready++
			refs = append(refs, r.Ref)
			got := l.data(r.Place)
			fillLoad(want, items[i*k.shards].Hash, shard)
			switch fits := crc32.Checksum(got, crc32.MakeTable(crc32.Castagnoli)) == r.Checksum; {
			case !fits:
				a.Corrupt++
			case !bytes.Equal(got, want):
				a.Wrong++
			}
		}
		here := ready == k.shards
		if settle {
			l.account(kind, first+i, here, a)
		}
	}
	return l.chunks.Release(ctx, refs)
}

// get takes references, also on what has to come from the disk first.
func (l *loader) get(ctx context.Context, ns store.Namespace, items []store.GetItem) ([]store.GetResult, error) {
	results, err := l.chunks.Get(ctx, ns, store.Lease{}, items)
	if err != nil {
		return nil, err
	}
	ticker := time.NewTicker(2 * time.Millisecond) // nothing tells when it is there
	defer ticker.Stop()
	for i, deadline := 0, time.Now().Add(patience); i < len(results); {
		if results[i].Status != store.GetLoading {
			i++
			continue
		}
		if time.Now().After(deadline) {
			return nil, errors.New("a chunk is loading for ever")
		}
		<-ticker.C
		again, err := l.chunks.Get(ctx, ns, store.Lease{}, items[i:i+1])
		if err != nil {
			return nil, err
		}
		results[i] = again[0]
	}
	return results, nil
}

// account compares what is there of a chunk with what was known.
func (l *loader) account(kind, n int, here bool, a *loadAnswer) {
	known := &l.known[kind][n]
	switch *known {
	case knownHere:
		a.Stored++
		if here {
			a.Here++
		}
	case knownNot:
		if here {
			a.Revived++
		}
	}
	*known = knownNot
	if here {
		a.Hits++
		*known = knownHere
		if kind == 0 && a.Prefix == n {
			a.Prefix++
		}
	}
}

// verify looks at all chunks.
func (l *loader) verify(ctx context.Context, a *loadAnswer) error {
	for kind := range loadKinds {
		const batch = 16 // with a disk, not all have room in memory at a time
		for first := 0; first < loadKinds[kind].chunks; first += batch {
			if err := l.load(ctx, kind, first, min(batch, loadKinds[kind].chunks-first), a, true); err != nil {
				return err
			}
		}
	}
	return nil
}

// hold starts puts and writes half of each.
func (l *loader) hold(ctx context.Context) (int, error) {
	for kind := range loadKinds {
		first := l.rng.IntN(loadKinds[kind].chunks - 20)
		puts, err := l.start(ctx, kind, first, 20)
		if err != nil {
			return 0, err
		}
		for i := range puts {
			l.write(&puts[i])
			b := l.data(puts[i].Place)
			clear(b[len(b)/2:])
		}
		l.held = append(l.held, puts...)
	}
	return len(l.held), nil
}

// scribble writes into what was granted before the master died.
func (l *loader) scribble() {
	for i := range l.held {
		b := l.data(l.held[i].Place)
		b[l.rng.IntN(len(b))]++
	}
}

// finish ends the held puts.
func (l *loader) finish(ctx context.Context) (int, error) {
	published := 0
	byKind := map[int][]store.PutCommit{}
	for i := range l.held {
		byKind[l.held[i].kind] = append(byKind[l.held[i].kind], l.write(&l.held[i]))
	}
	l.held = nil
	for kind, commits := range byKind {
		done, err := l.chunks.PutEnd(ctx, l.names[kind], commits)
		if err != nil {
			return published, err
		}
		for _, ok := range done {
			if ok {
				published++
			}
		}
	}
	return published, nil
}

// ready waits for a store session and opens the namespaces.
func (l *loader) ready(ctx context.Context) error {
	for {
		changed := l.chunks.Changed()
		err := l.open(ctx)
		if !errors.Is(err, store.ErrUnavailable) {
			return err
		}
		if !l.chunks.Ready() {
			<-changed
		}
	}
}

func (l *loader) open(ctx context.Context) error {
	for i := range loadKinds {
		name, err := l.chunks.OpenNamespace(ctx, loadKinds[i].spec())
		if err != nil {
			return err
		}
		l.names[i] = name
	}
	return nil
}
