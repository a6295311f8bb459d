package feed

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// publisher is an engine's, and the way from it to whoever has subscribed. It is the
// Transport of a test's feed.
type publisher struct {
	mu       sync.Mutex
	next     uint64
	from     uint64 // the first number that can be asked for
	buffer   [][]byte
	topic    string
	absent   bool // nobody listens
	refuses  bool // nobody answers replays
	noTopic  bool // it leaves the topic out of replays
	subs     map[*end]func([][]byte)
	links    map[*end]func(bool)
	asks     []uint64
	requests [][][]byte
}

func newPublisher() *publisher {
	return &publisher{subs: map[*end]func([][]byte){}, links: map[*end]func(bool){}}
}

// end is a connection's.
type end struct{ close func() }

func (e *end) Close() error { e.close(); return nil }

func (p *publisher) Subscribe(_, _ string, hear func([][]byte), link func(bool)) (io.Closer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := &end{}
	e.close = func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.subs, e)
		delete(p.links, e)
	}
	p.subs[e], p.links[e] = hear, link
	if !p.absent {
		link(true)
	}
	return e, nil
}

func (p *publisher) Ask(_ string, request [][]byte, hear func([][]byte)) (io.Closer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	from := binary.BigEndian.Uint64(request[1])
	p.asks = append(p.asks, from)
	p.requests = append(p.requests, request)
	var answers [][][]byte
	if !p.absent && !p.refuses {
		for i, payload := range p.buffer {
			if seq := p.from + uint64(i); seq >= from {
				answers = append(answers, p.answer(seq, payload))
			}
		}
		answers = append(answers, [][]byte{{}, {}, binary.BigEndian.AppendUint64(nil, 1<<64-1), {}})
	}
	var running sync.WaitGroup
	closed := make(chan struct{})
	running.Go(func() {
		for _, answer := range answers {
			select {
			case <-closed:
				return
			default:
				hear(answer)
			}
		}
	})
	return &end{func() { close(closed); running.Wait() }}, nil
}

func (p *publisher) answer(seq uint64, payload []byte) [][]byte {
	if p.noTopic {
		return [][]byte{{}, binary.BigEndian.AppendUint64(nil, seq), payload}
	}
	return [][]byte{{}, []byte(p.topic), binary.BigEndian.AppendUint64(nil, seq), payload}
}

// tell publishes a batch; lost has nobody hear it.
func (p *publisher) tell(t *testing.T, lost bool, events ...kvevents.Event) {
	t.Helper()
	rank := 0
	p.tellBatch(t, lost, &kvevents.Batch{Time: 1.5, Events: events, Rank: &rank})
}

func (p *publisher) tellBatch(t *testing.T, lost bool, batch *kvevents.Batch) {
	t.Helper()
	payload, err := kvevents.NewEncoder().Encode(batch)
	if err != nil {
		t.Fatal(err)
	}
	p.tellBytes(lost, payload)
}

func (p *publisher) tellBytes(lost bool, payload []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.buffer = append(p.buffer, payload)
	if !lost {
		p.send([]byte(p.topic), binary.BigEndian.AppendUint64(nil, p.next), payload)
	}
	p.next++
}

func (p *publisher) send(frames ...[]byte) {
	for _, hear := range p.subs {
		hear(frames)
	}
}

// disconnect loses the connection, connect makes it again.
func (p *publisher) disconnect() { p.connection(true) }
func (p *publisher) connect()    { p.connection(false) }

func (p *publisher) connection(absent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.absent = absent
	for _, link := range p.links {
		link(!absent)
	}
}

// refuse answers no replays, or does again.
func (p *publisher) refuse(refuses bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses = refuses
}

// restart is another publisher at the same place.
func (p *publisher) restart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next, p.from, p.buffer = 0, 0, nil
}

// evict leaves only the latest batches for replays.
func (p *publisher) evict(keep int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	gone := len(p.buffer) - keep
	p.buffer, p.from = p.buffer[gone:], p.from+uint64(gone)
}

func (p *publisher) asked() []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]uint64(nil), p.asks...)
}

const blockTokens = 2

// prompt are the tokens of a prompt of some blocks, block n of which is {n, n}.
func prompt(blocks ...uint32) (tokens []uint32) {
	for _, b := range blocks {
		tokens = append(tokens, b, b)
	}
	return tokens
}

// stored tells of a prompt's blocks, which have their numbers for hashes.
func stored(blocks ...uint32) *kvevents.BlockStored {
	e := &kvevents.BlockStored{TokenIDs: prompt(blocks...), BlockSize: blockTokens, Medium: kvevents.MediumGPU}
	for _, b := range blocks {
		e.Hashes = append(e.Hashes, kvevents.Hash(b))
	}
	return e
}

func removed(blocks ...kvevents.Hash) *kvevents.BlockRemoved {
	return &kvevents.BlockRemoved{Hashes: blocks, Medium: kvevents.MediumGPU}
}

// followed is a feed that runs.
type followed struct {
	*Feed
	*publisher
	t     *testing.T
	index *prefixindex.Index
	gate  sync.RWMutex
	stop  func()
}

func serviceOf() contract.Service {
	return contract.Service{
		Endpoint: "tcp://e:1", ReplayEndpoint: "tcp://e:2", Type: contract.TypeVLLM, Model: "m", Tenant: prefixindex.DefaultTenant, Instance: "e", BlockTokens: blockTokens,
	}
}

func follows(t *testing.T, p *publisher, change func(*Config)) *followed {
	t.Helper()
	f := &followed{publisher: p, t: t, index: prefixindex.New(prefixindex.Options{})}
	cfg := &Config{Service: serviceOf(), Transport: p, Gate: &f.gate, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(cfg)
	}
	if cfg.Source == nil {
		origin := prefixindex.Origin{Model: "m", Instance: "e"}
		if cfg.Service.Type == contract.TypeMooncake {
			origin.Rank, origin.Everyone = prefixindex.Shared, true
		}
		cfg.Source = f.index.Open(origin)
	}
	f.Feed = New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.Run(ctx)
	}()
	f.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	synctest.Wait()
	return f
}

// expect compares what is known of a prompt, in tokens, and of the stream.
func (f *followed) expect(tokens int, state contract.State, blocks ...uint32) {
	f.t.Helper()
	synctest.Wait()
	var packed []byte
	for _, token := range prompt(blocks...) {
		packed = binary.LittleEndian.AppendUint32(packed, token)
	}
	got := 0
	for _, m := range f.index.Query(&prefixindex.Query{Model: "m", BlockTokens: blockTokens, Tokens: packed}, nil) {
		got = m.Through[prefixindex.Disk]
	}
	if status := f.Status(); got != tokens || status.State != state {
		f.t.Errorf("%d tokens of %d, %s; %+v", got, tokens, state, status)
	}
}

// test runs a test in virtual time.
func test(t *testing.T, run func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, run)
}

func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
