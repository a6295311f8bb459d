package indexer

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/feed"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
	"github.com/mooncake-sidecar/sidecar/internal/zmqx"
)

// patience bounds what a correct run never waits for.
const patience = 2 * time.Minute

func newTransport(t *testing.T) *zmqx.Transport {
	t.Helper()
	transport, err := zmqx.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := transport.Close(); err != nil {
			t.Error(err)
		}
	})
	return transport
}

// endpoints are those of an engine: its publisher's and its replays'.
type endpoints struct{ events, replay string }

func ipcEndpoints(t *testing.T) endpoints {
	t.Helper()
	dir, err := os.MkdirTemp("", "ix")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return endpoints{"ipc://" + filepath.Join(dir, "e"), "ipc://" + filepath.Join(dir, "r")}
}

func tcpEndpoints(t *testing.T) endpoints {
	t.Helper()
	var free [2]string
	for i := range free {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		free[i] = "tcp://" + l.Addr().String()
	}
	return endpoints{free[0], free[1]}
}

// engine publishes as vLLM does.
type engine struct {
	t         *testing.T
	publisher *zmqx.Publisher
	replays   *zmqx.Responder

	mu     sync.Mutex
	next   uint64
	buffer [][]byte
	asked  []uint64
	topic  string
}

func newEngine(t *testing.T, transport *zmqx.Transport, at endpoints) *engine {
	t.Helper()
	e := &engine{t: t}
	t.Cleanup(e.close) // a transport waits for what is open, also where not all could be bound
	bound(t, func() (err error) {
		e.publisher, err = transport.Publish(at.events, 1000)
		return err
	})
	bound(t, func() (err error) {
		e.replays, err = transport.ListenStream(at.replay, 10_000, e.answer)
		return err
	})
	return e
}

// bound binds an endpoint. libzmq lets go of the one before some time after its socket was closed.
func bound(t *testing.T, bind func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for err := bind(); err != nil; err = bind() {
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

func (e *engine) close() {
	if e.publisher != nil {
		if err := e.publisher.Close(); err != nil {
			e.t.Error(err)
		}
	}
	if e.replays != nil {
		if err := e.replays.Close(); err != nil {
			e.t.Error(err)
		}
	}
	e.publisher, e.replays = nil, nil
}

func (e *engine) answer(frames [][]byte, reply func([][]byte) bool) {
	if len(frames) != 1 {
		return // as vLLM does
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	from := binary.BigEndian.Uint64(frames[0])
	e.asked = append(e.asked, from)
	for seq, payload := range e.buffer {
		if seq := uint64(seq); seq >= from && !reply([][]byte{[]byte(e.topic), binary.BigEndian.AppendUint64(nil, seq), payload}) {
			return
		}
	}
	reply([][]byte{{}, binary.BigEndian.AppendUint64(nil, 1<<64-1), {}})
}

func (e *engine) replayed() []uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.asked)
}

// tell publishes a batch, lose one that nobody hears.
func (e *engine) tell(events ...kvevents.Event) { e.publish(false, events...) }
func (e *engine) lose(events ...kvevents.Event) { e.publish(true, events...) }

func (e *engine) publish(lost bool, events ...kvevents.Event) {
	e.t.Helper()
	rank := 0
	payload, err := kvevents.NewEncoder().Encode(&kvevents.Batch{Time: 1.5, Events: events, Rank: &rank})
	if err != nil {
		e.t.Fatal(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !lost {
		if err := e.publisher.Send([]byte(e.topic), binary.BigEndian.AppendUint64(nil, e.next), payload); err != nil {
			e.t.Fatal(err)
		}
	}
	e.buffer = append(e.buffer, payload)
	e.next++
}

const blockTokens = 2

// stored tells of a prompt's blocks: block n is of the tokens n and n, and n is its hash.
func stored(blocks ...uint32) *kvevents.BlockStored {
	e := &kvevents.BlockStored{BlockSize: blockTokens, Medium: kvevents.MediumGPU}
	for _, b := range blocks {
		e.Hashes = append(e.Hashes, kvevents.Hash(b))
		e.TokenIDs = append(e.TokenIDs, b, b)
	}
	return e
}

func removed(blocks ...kvevents.Hash) *kvevents.BlockRemoved {
	return &kvevents.BlockRemoved{Hashes: blocks, Medium: kvevents.MediumGPU}
}

func prompt(blocks ...uint32) (tokens []byte) {
	for _, b := range blocks {
		tokens = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(tokens, b), b)
	}
	return tokens
}

func serviceAt(at endpoints, instance string, rank int) contract.Service {
	return contract.Service{
		Endpoint: at.events, ReplayEndpoint: at.replay, Type: contract.TypeVLLM, Model: "m", Instance: instance, BlockTokens: blockTokens, Rank: rank,
	}
}

func options(transport feed.Transport) *Options {
	return &Options{Transport: transport, MaxServices: 100, Log: slog.New(slog.DiscardHandler), Times: feed.Times{Probe: time.Second}}
}

func newIndexer(t *testing.T, opts *Options) *Indexer {
	t.Helper()
	x := New(opts)
	t.Cleanup(x.Close)
	return x
}

func register(t *testing.T, x *Indexer, s contract.Service) contract.Registered {
	t.Helper()
	made, err := x.Register(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// row is what a test looks at of an answer.
type row struct {
	Instance string
	Rank     int
	GPU, All int
	State    contract.State
	Foreign  bool
}

func rowsOf(x *Indexer, q *contract.Query) (rows []row) {
	for _, m := range x.Query(q, nil) {
		rows = append(rows, row{m.Instance, m.Rank, m.In[prefixindex.GPU], m.Through[prefixindex.Disk], m.State, m.Foreign})
	}
	return rows
}

// expect waits for an answer.
func expect(t *testing.T, x *Indexer, q *contract.Query, want ...row) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		got := rowsOf(x, q)
		if slices.Equal(got, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v, not %+v; %s", got, want, states(x))
		}
		time.Sleep(time.Millisecond)
	}
}

func states(x *Indexer) (text string) {
	for _, s := range x.Services() {
		text += fmt.Sprintf("\n%s: %s, next %d, %q %q, %+v", s.Key(), s.State, s.Next, s.Reason, s.Warnings, s.Blocks)
	}
	return text
}

func ask(blocks ...uint32) *contract.Query {
	return &contract.Query{Model: "m", BlockTokens: blockTokens, Tokens: prompt(blocks...)}
}

func eventually(t *testing.T, x *Indexer, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(states(x))
		}
	}
}
