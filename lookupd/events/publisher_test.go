package events

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// fakeSource is a tier of a store: chunks in numbered records, and a feed that is
// short.
type fakeSource struct {
	records []*Change // nil: free
	feed    []Change
	seq     uint64
	length  int
	// between is called before every look: the store goes on meanwhile.
	between func()
}

func (f *fakeSource) tell(c Change) {
	f.seq++
	c.Seq = f.seq
	f.feed = append(f.feed, c)
	if len(f.feed) > f.length {
		f.feed = f.feed[len(f.feed)-f.length:]
	}
}

func (f *fakeSource) Changes(dst []Change, after uint64, limit int) ([]Change, bool) {
	f.between()
	complete := len(f.feed) == 0 || f.feed[0].Seq <= after+1
	for _, c := range f.feed {
		if c.Seq > after && limit > 0 {
			dst = append(dst, c)
			limit--
		}
	}
	return dst, complete
}

func (f *fakeSource) Walk(dst []Change, from uint32) ([]Change, uint32, uint64) {
	f.between()
	end := min(int(from)+3, len(f.records))
	for i := int(from); i < end; i++ {
		if f.records[i] != nil {
			dst = append(dst, *f.records[i])
		}
	}
	next := uint32(end)
	if end == len(f.records) {
		next = 0
	}
	return dst, next, f.seq
}

func (f *fakeSource) find(ns Namespace, group uint32, hash kv.Hash) int {
	for i, r := range f.records {
		if r != nil && r.Namespace == ns && r.Group == group && r.Hash == hash {
			return i
		}
	}
	return -1
}

// key is what a consumer knows a chunk by.
type key struct {
	topic, medium string
	group         int
	hash          kvevents.Hash
}

// consumer applies events as an indexer would that counts copies.
type consumer struct {
	t      *testing.T
	next   map[string]uint64
	copies map[key]int
	// announced: topics of which the latest announcement has ended.
	announced map[string]bool
}

func (c *consumer) apply(topic string, seq uint64, payload []byte) {
	c.t.Helper()
	if next, known := c.next[topic]; known && seq != next {
		c.t.Fatalf("topic %s: batch %d, want %d", topic, seq, next)
	}
	c.next[topic] = seq + 1
	batch, refused, err := kvevents.NewDecoder().Decode(payload)
	if err != nil || refused != 0 {
		c.t.Fatal(refused, err)
	}
	if len(batch.Events) == 0 {
		if c.announced[topic] {
			c.t.Fatalf("topic %s: batch %d is the end of no announcement", topic, seq)
		}
		c.announced[topic] = true // of one that a late one has not heard begin, too
	}
	for _, e := range batch.Events {
		switch e := e.(type) {
		case *kvevents.AllBlocksCleared:
			c.announced[topic] = false
			for k := range c.copies {
				if k.topic == topic {
					delete(c.copies, k)
				}
			}
		case *kvevents.BlockStored:
			for _, h := range e.Hashes {
				c.copies[key{topic, e.Medium, *e.Group, h}]++
			}
		case *kvevents.BlockRemoved:
			for _, h := range e.Hashes {
				k := key{topic, e.Medium, *e.Group, h}
				if c.copies[k]--; c.copies[k] == 0 {
					delete(c.copies, k)
				}
			}
		}
	}
}

// world is a store of two tiers and two models, the publisher, and consumers.
type world struct {
	t         *testing.T
	rng       *rand.Rand
	specs     []*kv.NamespaceSpec
	open      int // how many of the namespaces the catalog has
	mem, disk *fakeSource
	p         *Publisher
	consumers []*consumer
	now       time.Time
	busy      bool
}

func (w *world) Namespaces() (open []Known) {
	for _, spec := range w.specs[:w.open] {
		open = append(open, Known{Namespace(spec.Digest()), spec})
	}
	return open
}

func (w *world) Publish(topic string, seq uint64, payload []byte) error {
	for _, c := range w.consumers {
		c.apply(topic, seq, payload)
	}
	return nil
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1_790_000_000, 0)}
	for i := range 2 {
		w.specs = append(w.specs, &kv.NamespaceSpec{Model: fmt.Sprintf("m%d", i), HashBytes: 32, Groups: []kv.GroupSpec{
			{Kind: kv.FullAttention, BlockTokens: 16}, {Kind: kv.SlidingWindow, BlockTokens: 16, WindowTokens: 64},
		}})
	}
	source := func(records int) *fakeSource {
		return &fakeSource{records: make([]*Change, records), length: 40, between: w.between}
	}
	w.mem, w.disk = source(20), source(31)
	w.busy = true
	w.change()
	w.p = New(&Config{
		Memory: w.mem, Disk: w.disk, Catalog: w, Sink: w, Topic: func(s *kv.NamespaceSpec) string { return s.Model },
		BufferBatches: 20, BufferBytes: 1 << 20, Now: func() time.Time { return w.now }, Log: slog.New(slog.DiscardHandler),
	})
	w.join()
	w.p.learn()
	w.busy = false
	return w
}

func (w *world) join() *consumer {
	c := &consumer{t: w.t, next: map[string]uint64{}, copies: map[key]int{}, announced: map[string]bool{}}
	w.consumers = append(w.consumers, c)
	return c
}

// between has the store change under a look of the publisher's.
func (w *world) between() {
	if !w.busy && w.rng.IntN(3) == 0 {
		w.change()
	}
}

// change does some things to the store.
func (w *world) change() {
	for range w.rng.IntN(6) {
		w.changeOnce()
	}
	if w.rng.IntN(200) == 0 {
		for range 60 { // more than the feed holds
			w.changeOnce()
		}
	}
}

func (w *world) changeOnce() {
	n := w.rng.IntN(2)
	ns := Namespace(w.specs[n].Digest())
	group, hash := uint32(w.rng.IntN(2)), kv.Hash{}
	binary.BigEndian.PutUint64(hash[24:], uint64(w.rng.IntN(12)))
	hash[0] = hash[31]
	at := w.mem
	if w.rng.IntN(2) == 0 {
		at = w.disk
	}
	if n >= w.open {
		if at == w.mem || w.rng.IntN(40) == 0 {
			w.open = n + 1
			w.mem.tell(Change{Kind: Opened, Namespace: ns})
		}
		if at == w.mem {
			return
		}
	}
	if w.rng.IntN(60) == 0 && n < w.open {
		for _, f := range []*fakeSource{w.mem, w.disk} {
			for i, r := range f.records {
				if r != nil && r.Namespace == ns {
					f.records[i] = nil
				}
			}
		}
		w.mem.tell(Change{Kind: Cleared, Namespace: ns})
		return
	}
	if i := at.find(ns, group, hash); i >= 0 {
		c := *at.records[i]
		c.Kind = Removed
		at.records[i] = nil
		at.tell(c)
		return
	}
	for _, i := range w.rng.Perm(len(at.records)) {
		if at.records[i] == nil {
			c := Change{Kind: Stored, Namespace: ns, Group: group, Hash: hash, Record: uint32(i)}
			at.records[i] = &c
			at.tell(c)
			return
		}
	}
}

// settle lets the publisher catch up with a store that stands still.
func (w *world) settle() {
	w.busy = true
	for i := 0; ; i++ {
		if i == 1000 {
			w.t.Fatal("it is never done")
		}
		w.p.round()
		if !w.p.busy() {
			break
		}
	}
	w.busy = false
	want := map[key]int{}
	for medium, f := range map[string]*fakeSource{kvevents.MediumCPU: w.mem, kvevents.MediumStorage: w.disk} {
		for _, r := range f.records {
			if r != nil && w.p.streams[r.Namespace] != nil {
				want[key{w.p.streams[r.Namespace].topic, medium, int(r.Group), kvevents.HashOf(r.Hash[:])}] = 1
			}
		}
	}
	if len(w.p.streams) != w.open {
		w.t.Fatalf("%d streams of %d namespaces", len(w.p.streams), w.open)
	}
	for i, c := range w.consumers {
		if len(c.copies) != len(want) {
			w.t.Errorf("consumer %d knows %d chunks, there are %d", i, len(c.copies), len(want))
		}
		for topic, done := range c.announced {
			if !done {
				w.t.Errorf("consumer %d does not hear that the announcement of %s has ended", i, topic)
			}
		}
		for k := range want {
			if c.copies[k] != 1 {
				w.t.Fatalf("consumer %d has %d copies of %+v", i, c.copies[k], k)
			}
		}
		if w.t.Failed() {
			w.t.Fatalf("has %v, want %v", c.copies, want)
		}
	}
}

// late is a subscriber that joins now, as the protocol has it: it listens, asks for
// the whole of the buffer, and takes what it hears live from there on.
func (w *world) late() {
	c := w.join()
	c.t = w.t
	w.now = w.now.Add(askAgain)
	for _, r := range w.p.Replay(nil, 0) {
		c.apply(r.Topic, r.Seq, r.Payload)
	}
}

func TestConsumersKnowWhatIsThere(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("EVENTS_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	lost, replays := uint64(0), uint64(0)
	for i := range uint64(120) {
		t.Logf("EVENTS_SEED=%d", seed+i)
		w := newWorld(t, seed+i)
		for range 60 {
			w.now = w.now.Add(time.Second)
			switch w.rng.IntN(12) {
			case 0:
				w.settle()
			case 1:
				if len(w.consumers) < 5 {
					w.late()
				}
			default:
				w.busy = true
				w.change()
				w.busy = false
				w.p.round()
			}
		}
		w.settle()
		st := w.p.Stats()
		lost, replays = lost+st.Announcements[Lost], replays+st.Replays
	}
	if lost == 0 || replays == 0 {
		t.Errorf("%d losses and %d replays: the test has not met what it is for", lost, replays)
	}
}

// A chunk that goes from memory to the disk and back is somewhere at every moment.
func TestDemotionAndPromotion(t *testing.T) {
	w := newWorld(t, 1)
	w.busy, w.open = true, 1
	w.mem.tell(Change{Kind: Opened, Namespace: Namespace(w.specs[0].Digest())})
	ns := Namespace(w.specs[0].Digest())
	for _, f := range []*fakeSource{w.mem, w.disk} {
		clear(f.records)
		f.feed = nil
	}
	w.p.startOver()
	for w.p.round(); w.p.busy(); {
		w.p.round()
	}
	var told []string
	w.p.cfg.Sink = sinkFunc(func(payload []byte) {
		batch, _, err := kvevents.NewDecoder().Decode(payload)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range batch.Events {
			switch e := e.(type) {
			case *kvevents.BlockStored:
				if e.BlockSize != 0 || e.TokenIDs != nil || e.Parent != nil || e.SpecKind != "sliding_window" || e.Window != 64 {
					t.Errorf("stored %+v", e)
				}
				told = append(told, "+"+e.Medium)
			case *kvevents.BlockRemoved:
				told = append(told, "-"+e.Medium)
			}
		}
	})
	chunk := Change{Namespace: ns, Group: 1, Hash: kv.Hash{31: 7}}
	step := func(f *fakeSource, kind Kind) {
		c := chunk
		c.Kind = kind
		f.tell(c)
	}
	step(w.mem, Stored)
	w.p.round()
	step(w.disk, Stored)
	step(w.mem, Removed)
	w.p.round()
	step(w.mem, Stored)
	w.p.round()
	if got, want := fmt.Sprint(told), "[+CPU +STORAGE -CPU +CPU]"; got != want {
		t.Errorf("told %s, want %s", got, want)
	}
}

type sinkFunc func(payload []byte)

func (f sinkFunc) Publish(_ string, _ uint64, payload []byte) error { f(payload); return nil }
