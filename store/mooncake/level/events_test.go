package level_test

import (
	"bytes"
	"cmp"
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/level"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
)

// teller tells a rig what a master would.
type teller struct {
	*rig
	seq uint64
}

// newTeller returns a rig that is told, by somebody who has told something already.
func newTeller(t *testing.T, cluster *mooncaketest.Cluster, opts level.Options) *teller {
	t.Helper()
	opts.Events, opts.EventTenant = true, "default"
	opts.KnownChunks, opts.ToldChunks = 1<<10, cmp.Or(opts.ToldChunks, 1<<10) // forgetting takes the time of all
	r := &teller{rig: newRig(t, cluster, opts)}
	r.Linked(true)
	r.tell(mooncaketest.Event{Key: "another's", Stored: true})
	time.Sleep(10 * time.Millisecond)
	return r
}

// tell sends the next message.
func (r *teller) tell(events ...mooncaketest.Event) {
	r.seq++
	r.Hear(mooncaketest.EventMessage(r.seq, time.Now(), events...))
}

// objectKey is the key of a chunk's shard.
func objectKey(t *testing.T, i, shard int) string {
	t.Helper()
	space, err := mooncake.NamespaceKeys(spec())
	if err != nil {
		t.Fatal(err)
	}
	hash := hashOf(i)
	return kv.PoolKey(space.Prefixes[0][shard], hash[:spec().HashBytes])
}

// shardEvent is the event of one shard, and of those of a chunk.
func (r *teller) shardEvent(i, shard int, stored bool) mooncaketest.Event {
	return mooncaketest.Event{Key: objectKey(r.t, i, shard), Stored: stored}
}

func (r *teller) tellChunk(i int, stored bool) {
	r.tell(r.shardEvent(i, 0, stored), r.shardEvent(i, 1, stored))
}

// forgotten returns how often what was told was forgotten for a reason.
func (r *teller) forgotten(why level.Oblivion) uint64 { return r.Stats().Events.Forgotten[why] }

// TestToldIsKnown: a chunk of which all shards were told of is there, unasked, and one of
// which a shard was removed is not.
func TestToldIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTeller(t, mooncaketest.NewCluster(0), level.Options{})
		r.tell(r.shardEvent(1, 1, true))
		r.expect(1, kv.Unknown)
		r.tell(r.shardEvent(1, 0, true), r.shardEvent(2, 0, true), r.shardEvent(2, 1, true))
		r.expect(1, kv.Present)
		r.expect(2, kv.Present)
		key := r.key(1)
		if _, there := r.Look(&key); there {
			t.Error("a copy may be given up for what has no lease")
		}
		if _, there := r.Offers(&key); !there {
			t.Error("it is not to be had")
		}
		time.Sleep(9 * time.Minute)
		r.expect(1, kv.Present)
		r.tell(r.shardEvent(1, 0, false))
		r.expect(1, kv.Absent)
		time.Sleep(time.Second)
		r.expect(1, kv.Unknown)
		r.tell(r.shardEvent(1, 0, true))
		r.expect(1, kv.Present)
		if _, there := r.Offers(&key); !there {
			t.Error("it is not to be had, for it was absent a second before")
		}
		r.tell(r.shardEvent(1, 0, false))
		r.expect(1, kv.Absent)
		r.tell(r.shardEvent(1, 0, true))
		r.expect(1, kv.Present) // though it was absent a moment ago
		time.Sleep(time.Minute)
		r.expect(2, kv.Unknown) // for ten minutes nobody has told of it
		s := r.Stats()
		if s.Questions != 0 || s.Events.Stored != 6 || s.Events.Removed != 2 || s.Events.Foreign != 1 || s.Events.Lookups == 0 || !s.Events.Linked {
			t.Errorf("%+v", s)
		}
	})
}

// TestToldIsForgotten: what can't be relied on any more is asked for again.
func TestToldIsForgotten(t *testing.T) {
	for name, c := range map[string]struct {
		why level.Oblivion
		do  func(r *teller)
	}{
		"link":    {level.ForgottenLink, func(r *teller) { r.Linked(false) }},
		"gap":     {level.ForgottenGap, func(r *teller) { r.seq++; r.tellChunk(2, true) }},
		"restart": {level.ForgottenRestart, func(r *teller) { r.seq = 0; r.tellChunk(2, true) }},
		"twice":   {level.ForgottenRestart, func(r *teller) { r.seq--; r.tellChunk(2, true) }},
		"frames":  {level.ForgottenMalformed, func(r *teller) { r.Hear([][]byte{{}, {1, 2, 3}, {0x90}}); r.seq++; r.tellChunk(2, true) }},
		"batch":   {level.ForgottenMalformed, func(r *teller) { m := r.next(); m[2] = m[2][:len(m[2])-1]; r.Hear(m) }},
		"event": {level.ForgottenMalformed, func(r *teller) {
			m := r.next()
			m[2] = bytes.Replace(m[2], []byte("seq_hashes\x90"), []byte("seq_hashes\xc3"), 1)
			r.Hear(m)
		}},
		"cleared": {level.ForgottenCleared, func(r *teller) {
			if err, _ := r.put(1, 0); err != nil { // so that more than events say it is there
				r.t.Error(err)
			}
			for _, key := range r.cluster.Keys() {
				_, _ = r.engine.Remove(r.t.Context(), []string{key})
			}
			r.tell(mooncaketest.Event{})
		}},
		"era": {level.ForgottenEra, func(r *teller) { r.cluster.Forget(); time.Sleep(3 * time.Second) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newTeller(t, mooncaketest.NewCluster(0), level.Options{})
				time.Sleep(3 * time.Second) // the canary is there
				r.tellChunk(1, true)
				r.expect(1, kv.Present)
				c.do(r)
				r.expect(1, kv.Unknown)
				want := [level.Oblivions]uint64{}
				if want[c.why] = 1; r.Stats().Events.Forgotten != want {
					t.Errorf("%+v", r.Stats().Events)
				}
				if err := r.ask(t.Context(), 1); err != nil || r.exists(1) != kv.Absent {
					t.Errorf("asked, it is %s, %v", r.exists(1), err)
				}
				if name == "link" {
					if r.EventsProblem() == "" {
						t.Error("nobody says so")
					}
					r.Linked(true)
				}
				r.tellChunk(3, true)
				r.expect(3, kv.Present) // it goes on
			})
		})
	}
}

// TestToldByTheNextMaster: what it has told is known yet when a question finds out that it
// is another one.
func TestToldByTheNextMaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTeller(t, mooncaketest.NewCluster(0), level.Options{})
		time.Sleep(3 * time.Second)
		r.tellChunk(1, true)
		era := r.Era()
		r.cluster.Forget()
		r.Linked(false)
		r.Linked(true)
		r.seq = 0
		r.tellChunk(2, true)
		time.Sleep(3 * time.Second)
		if r.Era() == era {
			t.Fatal("nobody has noticed")
		}
		r.expect(1, kv.Unknown)
		r.expect(2, kv.Present)
	})
}

// next is the next message, untold: chunk 2 is removed.
func (r *teller) next() [][]byte {
	r.seq++
	return mooncaketest.EventMessage(r.seq, time.Now(), r.shardEvent(2, 0, false), r.shardEvent(2, 1, false))
}

// TestToldOfOthers: nothing follows from what is told of others' objects, or of none.
func TestToldOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTeller(t, mooncaketest.NewCluster(0), level.Options{})
		key := objectKey(t, 1, 0)
		r.tellChunk(2, true)
		r.tell(mooncaketest.Event{Key: key, Stored: true, Tenant: "other"}, mooncaketest.Event{Key: key[:len(key)-2], Stored: true},
			mooncaketest.Event{Key: key + "x", Stored: true}, mooncaketest.Event{Key: objectKey(t, 1, 1), Stored: true},
			mooncaketest.Event{Key: objectKey(t, 2, 1), Tenant: "other"})
		r.expect(1, kv.Unknown)
		r.expect(2, kv.Present)
		r.tell(mooncaketest.Event{Key: key, Stored: true, Medium: "tape"})
		r.expect(1, kv.Unknown)
		if s := r.Stats().Events; s.Foreign != 5 || s.Stored != 4 || s.Forgotten != [level.Oblivions]uint64{} {
			t.Errorf("%+v", s)
		}
	})
}

// TestToldOfMedia: a chunk that has left memory is there while a disk has it; one that may
// be on a disk of which nobody has told is unknown.
func TestToldOfMedia(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := mooncaketest.NewCluster(0)
		r := newTeller(t, cluster, level.Options{})
		on := func(medium string, stored bool) {
			for shard := range 2 {
				r.tell(mooncaketest.Event{Key: objectKey(t, 1, shard), Stored: stored, Medium: medium})
			}
		}
		on("cpu", true)
		on("disk", true)
		on("cpu", false)
		r.expect(1, kv.Present)
		on("DISK", false)
		r.expect(1, kv.Absent)
		if err, _ := r.put(2, 0); err != nil {
			t.Fatal(err)
		}
		r.tell(r.shardEvent(2, 0, false))
		r.expect(2, kv.Unknown)
	})
}

// TestToldWhileAsking: of an event and an answer, or a put, that cross, the event is not
// undone by what is older.
func TestToldWhileAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := mooncaketest.NewCluster(0)
		r := newTeller(t, cluster, level.Options{})
		other := newRig(t, cluster, level.Options{})
		if err, _ := other.put(1, 0); err != nil {
			t.Fatal(err)
		}
		during := func(op string, do func()) {
			r.engine.SetFault(func(is string, _ []string) mooncaketest.Fault {
				if is == op && do != nil {
					do()
					do = nil
				}
				return mooncaketest.Fault{}
			})
		}
		during("exist", func() { r.tellChunk(1, false) })
		if err := r.ask(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if r.exists(1) == kv.Present {
			t.Error("an answer undoes a removal")
		}
		during("exist", func() { r.tellChunk(2, true) })
		if err := r.ask(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		r.expect(2, kv.Present)
		during("put", func() { r.tellChunk(3, false) })
		if err, _ := r.put(3, 1); err != nil {
			t.Fatal(err)
		}
		if r.exists(3) == kv.Present {
			t.Error("a put undoes a removal")
		}
		if err, _ := other.put(4, 0); err != nil {
			t.Fatal(err)
		}
		during("exist", func() { r.seq++; r.tellChunk(5, true) }) // what was told before it was not heard
		if err := r.ask(t.Context(), 4); err != nil {
			t.Fatal(err)
		}
		r.expect(4, kv.Present)
		time.Sleep(6 * time.Second)
		r.expect(4, kv.Unknown)
		if n := r.forgotten(level.ForgottenContradicted); n != 0 {
			t.Errorf("%d contradictions", n)
		}
	})
}

// TestToldAndRemovedHere: what is being removed is not found by what was told of it before,
// or is told meanwhile.
func TestToldAndRemovedHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := mooncaketest.NewCluster(0)
		r := newTeller(t, cluster, level.Options{ResetCluster: true})
		if err, _ := r.put(1, 0); err != nil {
			t.Fatal(err)
		}
		r.tellChunk(1, true)
		cluster.GiveLeases()
		if err := r.ask(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		key := r.key(1)
		if !r.Forget(&key) {
			t.Fatal("it was not taken")
		}
		for i := range 50 {
			if i == 20 {
				r.tellChunk(1, true) // was on its way
			}
			if r.exists(1) == kv.Present {
				t.Fatal("it is found")
			}
			time.Sleep(100 * time.Millisecond)
		}
		cluster.EndLeases()
		time.Sleep(5 * time.Second)
		r.tellChunk(1, false)
		r.tellChunk(1, true) // another one
		time.Sleep(2 * time.Second)
		r.expect(1, kv.Present)

		r.RemoveAll(r.digest)
		r.expect(1, kv.Unknown)
		r.tellChunk(1, true)
		r.expect(1, kv.Unknown)
	})
}

// TestAnswersLast: while events are heard an answer is good until they say otherwise.
func TestAnswersLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := mooncaketest.NewCluster(0)
		other := newRig(t, cluster, level.Options{})
		for i := range 2 {
			if err, _ := other.put(i, i); err != nil {
				t.Fatal(err)
			}
		}
		r := newTeller(t, cluster, level.Options{})
		if err := r.ask(t.Context(), 0, 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		r.expect(0, kv.Present)
		r.tell(r.shardEvent(0, 1, false))
		r.expect(0, kv.Unknown) // another medium may have it
		r.expect(1, kv.Present)
		r.Linked(false)
		r.Linked(true) // what was asked before the first message may be older than one that was not heard
		if err := r.ask(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		r.tellChunk(7, true)
		time.Sleep(6 * time.Second)
		r.expect(1, kv.Unknown)
	})
}

// TestToldIsBounded: of what does not fit nothing is known.
func TestToldIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTeller(t, mooncaketest.NewCluster(0), level.Options{ToldChunks: 16})
		for i := range 1000 {
			r.tellChunk(i, true)
		}
		known := 0
		for i := range 1000 {
			switch r.exists(i) {
			case kv.Present:
				known++
			case kv.Absent:
				t.Fatalf("chunk %d is absent", i)
			}
		}
		if known < 8 || known > 32 {
			t.Errorf("%d chunks are known", known)
		}
	})
}

// TestTellersWorld: a cluster that others change, with a stream that loses messages, breaks
// off and begins anew: when all was heard, what is said to be there is there, and what was
// told since something was lost is known.
func TestTellersWorld(t *testing.T) {
	hits := 0
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) { hits += newWorld(t, seed).run() })
	}
	if hits < 500 {
		t.Errorf("%d chunks were found in all", hits)
	}
}

const worldChunks = 6

// world is the naive model.
type world struct {
	*teller
	random *rand.Rand
	other  *mooncaketest.Engine
	memory []byte
	queue  [][][]byte // messages under way
	// told are the shards that were told of and not taken back since something was lost, and
	// when.
	told    map[string]time.Time
	pending []func() // what the queue's messages mean for told
	lost    uint64   // times that the level forgot of itself
}

func newWorld(t *testing.T, seed uint64) *world {
	cluster := mooncaketest.NewCluster(0)
	cluster.GiveLeases()
	w := &world{
		teller: newTeller(t, cluster, level.Options{}), random: rand.New(rand.NewPCG(seed, 7)), memory: make([]byte, shardBytes), told: map[string]time.Time{},
	}
	w.other = cluster.NewEngine(w.memory)
	return w
}

func (w *world) send(e mooncaketest.Event) {
	w.seq++
	w.queue = append(w.queue, mooncaketest.EventMessage(w.seq, time.Now(), e))
	w.pending = append(w.pending, func() {
		if e.Stored {
			w.told[e.Key] = time.Now()
		} else {
			delete(w.told, e.Key)
		}
	})
}

func (w *world) deliver(n int) {
	for range min(n, len(w.queue)) {
		w.Hear(w.queue[0])
		w.pending[0]()
		w.queue, w.pending = w.queue[1:], w.pending[1:]
	}
}

// loseAll: nothing of what was told counts, or is under way.
func (w *world) loseAll() {
	clear(w.told)
	w.queue, w.pending = nil, nil
}

func (w *world) step() {
	key := objectKey(w.t, w.random.IntN(worldChunks), w.random.IntN(2))
	switch n := w.random.IntN(100); {
	case n < 35:
		if w.cluster.Bytes(key) == nil {
			if _, err := w.other.Put(context.Background(), mooncake.Replication{}, []mooncake.Object{{Key: key, Range: mooncake.Range{Bytes: shardBytes}}}); err != nil {
				w.t.Fatal(err)
			}
			w.send(mooncaketest.Event{Key: key, Stored: true})
		}
	case n < 55:
		if answers, err := w.other.Remove(context.Background(), []string{key}); err != nil {
			w.t.Fatal(err)
		} else if answers[0] >= 0 {
			w.send(mooncaketest.Event{Key: key})
		}
	case n < 75:
		w.deliver(w.random.IntN(4))
	case n < 82:
		if err := w.ask(w.t.Context(), w.random.IntN(worldChunks)); err != nil {
			w.t.Fatal(err)
		}
	case n < 85: // of questions that were asked half a lease ago
		time.Sleep(5 * time.Second)
		w.cluster.EndLeases()
		w.cluster.GiveLeases()
	case n < 92:
		time.Sleep(time.Duration(w.random.IntN(2000)) * time.Millisecond)
	case n < 95: // the messages under way are lost, and the next one shows it
		w.loseAll()
		w.seq++
		w.send(mooncaketest.Event{Key: "another's", Stored: true})
	case n < 97:
		w.loseAll()
		w.Linked(false)
		w.Linked(true)
	default: // another master
		w.loseAll()
		w.cluster.Forget()
		w.seq = 0
		w.send(mooncaketest.Event{Key: "another's", Stored: true})
		time.Sleep(6 * time.Second)
	}
	w.noteLost()
}

// noteLost follows what the level forgets of itself.
func (w *world) noteLost() {
	if n := w.forgotten(level.ForgottenContradicted) + w.forgotten(level.ForgottenEra); n != w.lost {
		w.lost = n
		clear(w.told)
	}
}

// run returns how many chunks were found.
func (w *world) run() (hits int) {
	w.t.Helper()
	for range 400 {
		w.step()
		if w.random.IntN(5) > 0 {
			continue
		}
		w.deliver(len(w.queue))
		time.Sleep(1100 * time.Millisecond) // absence is old
		w.noteLost()
		for i := range worldChunks {
			a, b := objectKey(w.t, i, 0), objectKey(w.t, i, 1)
			there := w.cluster.Bytes(a) != nil && w.cluster.Bytes(b) != nil
			toldA, okA := w.told[a]
			toldB, okB := w.told[b]
			recently := okA && okB && (time.Since(toldA) < 4*time.Second || time.Since(toldB) < 4*time.Second)
			switch found := w.exists(i); {
			case found == kv.Present && !there:
				w.t.Fatalf("chunk %d is said to be there", i)
			case found != kv.Present && recently:
				w.t.Fatalf("chunk %d was told of and is %s", i, found)
			case found == kv.Present:
				hits++
			}
		}
	}
	return hits
}
