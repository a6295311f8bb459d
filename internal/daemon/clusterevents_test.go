package daemon

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/doctor"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/zmqx"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
)

// masterEvents are the KV events of a test's master: its own, or those of a stand-in that
// tells what the test has done.
type masterEvents interface {
	// tell tells of objects, where the master does not.
	tell(keys []string, stored bool)
	// down and up go with the master's death and its next life.
	down()
	up()
}

// ownEvents are the master's.
type ownEvents struct{}

func (ownEvents) tell([]string, bool) {}
func (ownEvents) down()               {}
func (ownEvents) up()                 {}

// standIn tells in the master's place.
type standIn struct {
	t         *testing.T
	transport *zmqx.Transport
	endpoint  string
	publisher *zmqx.Publisher
	seq       uint64
}

func newStandIn(t *testing.T) *standIn {
	t.Helper()
	transport, err := zmqx.New()
	if err != nil {
		t.Fatal(err)
	}
	s := &standIn{t: t, transport: transport, endpoint: "ipc://" + filepath.Dir(shortDir(t)) + "/told"}
	s.up()
	t.Cleanup(func() {
		s.down()
		if err := transport.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *standIn) up() {
	publisher, err := s.transport.Publish(s.endpoint, 1000)
	if err != nil {
		s.t.Fatal(err)
	}
	s.publisher, s.seq = publisher, 0
}

func (s *standIn) down() {
	if err := s.publisher.Close(); err != nil {
		s.t.Error(err)
	}
}

func (s *standIn) tell(keys []string, stored bool) {
	for _, key := range keys {
		s.seq++
		if err := s.publisher.Send(mooncaketest.EventMessage(s.seq, time.Now(), mooncaketest.Event{Key: key, Stored: stored})...); err != nil {
			s.t.Error(err)
		}
	}
}

// keysOf are the objects of chunks.
func keysOf(t *testing.T, blob []byte) (keys []string) {
	t.Helper()
	space, err := mooncake.NamespaceKeys(spec())
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(blob); at += 16 {
		keys = append(keys, kv.PoolKey(space.Prefixes[0][0], blob[at:at+16]))
	}
	return keys
}

// TestMasterEvents: what another node stores is found without a question when the master
// tells of it, what is removed is not, and another master's life begins with nothing known.
func TestMasterEvents(t *testing.T) {
	python := mooncaketest.Python(t)
	onLoopback(t)
	t.Run("its own", func(t *testing.T) {
		master, endpoint := mooncaketest.StartTellingMaster(t)
		followsEvents(t, python, master, endpoint, ownEvents{})
	})
	t.Run("a stand-in's", func(t *testing.T) {
		events := newStandIn(t)
		followsEvents(t, python, mooncaketest.StartMaster(t, python), events.endpoint, events)
	})
}

// followsEvents is TestMasterEvents for a master.
func followsEvents(t *testing.T, python string, master *mooncaketest.Master, endpoint string, events masterEvents) {
	peer := mooncaketest.StartPeer(t, python, master, lentBytes)
	file := writeCluster(t, master)
	a := startFarNode(t, python, file, nil)
	b := startFarNode(t, python, file, func(c *config.LookupdConfig) { c.Events = endpoint })
	seed := byte(0)
	heard := func() int { return b.metric(`cluster_events_total{kind="stored"}`) }
	stored := func() int { return a.metric(`cluster_chunks_total{direction="put",result="stored"}`) }
	// settled waits until a counter has been the same for a while: what was tried before may
	// come late.
	settled := func(count func() int) (n int) {
		for same := 0; same < 20; pause(20 * time.Millisecond) {
			if is := count(); is != n {
				n, same = is, 0
			}
			same++
		}
		return n
	}
	// store has a put chunks that nobody had. all: they are there, and b was told of them.
	store := func() (blob []byte, all bool) {
		seed++
		blob = blobOf(seed, 20)
		before, put20 := settled(heard), settled(stored)
		put(t, a.chunks, blob)
		if settled(stored) != put20+20 {
			return blob, false
		}
		events.tell(keysOf(t, blob), true)
		return blob, settled(heard) == before+20
	}
	questions := func() int {
		return b.metric(`cluster_questions_total{result="answered"}`) + b.metric(`cluster_questions_total{result="failed"}`)
	}
	// told returns chunks that b was told of: at first nobody may hear it.
	told := func() (blob []byte) {
		t.Helper()
		untilLong(t, "the events", func() (all bool) { blob, all = store(); return all })
		return blob
	}
	// finds has b find chunks without a question.
	finds := func(blob []byte) {
		t.Helper()
		before := questions()
		if got := hit(t, b.lookup, blob); got != 320 || questions() != before {
			t.Errorf("a hit of %d with %d questions", got, questions()-before)
		}
	}
	until(t, "the events are followed", func() bool { return b.metric("cluster_events_linked") == 1 })
	blob, later := told(), told()
	finds(blob)
	if whole, far := b.load(spec(), blob); whole != 20 || far == 0 {
		t.Errorf("%d chunks were loaded, %d of them from the cluster", whole, far)
	}
	if b.metric("cluster_events_lookups_total") == 0 || b.metric(`cluster_events_forgotten_total{reason="contradicted"}`) != 0 {
		t.Error("the counters say something else")
	}

	pause(6 * time.Second) // longer than an answer would be good for
	finds(later)

	removed := told()
	gone := b.metric(`cluster_events_total{kind="removed"}`)
	for _, key := range keysOf(t, removed) {
		var code int
		if peer.Ask("remove", map[string]any{"key": key}, &code); code != 0 {
			t.Fatalf("remove: %d", code)
		}
		events.tell([]string{key}, false)
	}
	until(t, "the removals are told", func() bool { return b.metric(`cluster_events_total{kind="removed"}`) == gone+20 })
	if got := hit(t, b.lookup, removed); got != 0 {
		t.Errorf("a hit of %d of what was removed", got)
	}

	lost := told()
	forgotten := b.metric(`cluster_events_forgotten_total{reason="link"}`)
	master.Kill()
	events.down()
	until(t, "what was told is forgotten", func() bool { return b.metric(`cluster_events_forgotten_total{reason="link"}`) > forgotten })
	master.Restart(t)
	events.up()
	until(t, "the outage is over", func() bool { return b.metric("cluster_in_service") == 1 && b.metric("cluster_events_linked") == 1 })
	b.awaitService(true)
	before := questions()
	if got := hit(t, b.lookup, lost); got != 0 {
		t.Errorf("a hit of %d of what was lost", got)
	}
	until(t, "the cluster was asked", func() bool { return questions() > before })
	a.awaitService(true)
	blob = told()
	finds(blob)
	if whole, far := b.load(spec(), blob); whole != 20 || far == 0 {
		t.Errorf("by the next master, %d chunks were loaded, %d of them from the cluster", whole, far)
	}
}

// TestProbeEvents: doctor tells a master that publishes its events from one that does not.
func TestProbeEvents(t *testing.T) {
	python := mooncaketest.Python(t)
	onLoopback(t)
	probe := func(t *testing.T, master *mooncaketest.Master, endpoint string) doctor.Cluster {
		mooncaketest.StartPeer(t, python, master, lentBytes)
		m := config.Mooncake{StorePython: python, ConfigPath: writeCluster(t, master), Events: endpoint}
		return ProbeCluster(t.Context(), &m)
	}
	t.Run("told", func(t *testing.T) {
		master, endpoint := mooncaketest.StartTellingMaster(t)
		if found := probe(t, master, endpoint); !found.Ready || !found.Linked || !found.Told || !found.Named || found.EventsErr != nil {
			t.Errorf("%+v", found)
		}
	})
	t.Run("nothing", func(t *testing.T) {
		events := newStandIn(t)
		if found := probe(t, mooncaketest.StartMaster(t, python), events.endpoint); !found.Ready || !found.Linked || found.Told {
			t.Errorf("%+v", found)
		}
	})
	t.Run("nobody", func(t *testing.T) {
		if found := probe(t, mooncaketest.StartMaster(t, python), "ipc://"+filepath.Dir(shortDir(t))+"/nobody"); !found.Ready || found.Linked || found.EventsErr != nil {
			t.Errorf("%+v", found)
		}
	})
}
