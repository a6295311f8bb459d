package embedded

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded/storepb"
)

// fourNodes is a machine whose nodes have gaps in their numbers, as after one was
// taken offline.
func fourNodes(bytes uint64) []NodeRoom {
	return []NodeRoom{{0, bytes}, {1, bytes}, {4, bytes}, {5, bytes}}
}

// nodeOf is the node that a chunk's only shard is on.
func (w *world) nodeOf(ns store.Namespace, chunk int) int {
	hash := testHash(chunk)
	rec, ok := w.m.findLocked(ns.ID, 0, &hash)
	if !ok {
		w.tb.Fatalf("chunk %d is lost", chunk)
	}
	r := w.m.seg.peekRecord(rec)
	return w.m.nodes[w.m.alloc.slabs[r.slot/w.m.seg.SlotsPerSlab].home]
}

// storeNear stores a chunk from a worker next to a node.
func (w *world) storeNear(s Session, ns store.Namespace, node, chunk int) store.PutStatus {
	return w.storeAs(s, ns, PutOptions{Node: &node}, chunk)
}

// TestChunksAreNearTheirWriters: with four nodes, chunks go to the node of who
// stores them, then to the others, and only then is anything evicted. Without a
// node they are spread evenly.
func TestChunksAreNearTheirWriters(t *testing.T) {
	w := newBareWorldOn(t, 32<<20, fourNodes(1<<40))
	w.prepare()
	s, ns := w.open(1, 1, 100, Declaration{}), w.namespace(testSpec("m", 256<<10, 1))
	const perNode = 32 << 20 / 4 / (256 << 10)
	chunk := 0
	for _, node := range []int{4, 0} {
		for range perNode {
			w.storeNear(s, ns, node, chunk)
			if got := w.nodeOf(ns, chunk); got != node {
				t.Fatalf("chunk %d from node %d is on node %d", chunk, node, got)
			}
			chunk++
		}
	}
	for range 32 {
		w.storeAs(s, ns, PutOptions{}, chunk)
		chunk++
	}
	placed := map[int]int{}
	for i := 2 * perNode; i < chunk; i++ {
		placed[w.nodeOf(ns, i)]++
	}
	if placed[1] != 16 || placed[5] != 16 {
		t.Fatalf("chunks from nowhere are on nodes %v", placed)
	}
	for ; chunk < 4*perNode; chunk++ {
		w.storeNear(s, ns, 4, chunk) // its node is full
	}
	w.m.validate(t)
	st := w.m.Stats()
	if st.Removed[RemovedEvicted] != 0 || st.Chunks != 4*perNode {
		t.Fatalf("%d chunks, %d evicted before all nodes were full", st.Chunks, st.Removed[RemovedEvicted])
	}
	for i, node := range []int{0, 1, 4, 5} {
		if want := (NodeStats{node, 8 << 20, 8 << 20, 8 << 20}); st.Nodes[i] != want {
			t.Errorf("node %d: %+v, want %+v", node, st.Nodes[i], want)
		}
	}
	if w.storeNear(s, ns, 0, chunk); w.m.Stats().Removed[RemovedEvicted] != 1 {
		t.Error("a full store evicted nothing, or too much")
	}
}

// TestAPutSaysItsNode: the number comes over the wire as it is meant; a node that
// no kernel has is none.
func TestAPutSaysItsNode(t *testing.T) {
	w := newBareWorldOn(t, 32<<20, fourNodes(1<<40))
	w.prepare()
	s, ns := w.open(1, 1, 100, Declaration{}), w.namespace(testSpec("m", 4096, 1))
	service := NewService(w.m)
	for near, want := range map[uint32][]int{1: {0}, 2: {1}, 5: {4}, 6: {5}, 0: {0, 1, 4, 5}, 9: {0, 1, 4, 5}, 1 << 31: {0, 1, 4, 5}} {
		hash := testHash(int(near))
		reply, err := service.PutStart(t.Context(), &storepb.PutStartRequest{
			Session: &storepb.Session{Client: s.Client, Number: s.Number}, Namespace: &storepb.Namespace{Id: uint32(ns.ID), ResetEpoch: ns.ResetEpoch},
			Groups: []uint32{0}, Shards: []uint32{0}, Depths: []uint32{0}, Hashes: hash[:], Parents: make([]byte, len(hash)), NearNode: near,
		})
		if err != nil || len(reply.GetOffsets()) != 1 {
			t.Fatalf("near %d: %v, %v", near, reply, err)
		}
		slab := reply.GetOffsets()[0] / w.m.seg.SlabBytes
		if got := w.m.nodes[w.m.alloc.slabs[slab].home]; !slices.Contains(want, got) {
			t.Errorf("near %d: node %d, want one of %v", near, got, want)
		}
	}
}

// TestMovesStayOnTheirNode: what is moved together is moved within its node as
// long as there is room.
func TestMovesStayOnTheirNode(t *testing.T) {
	w := newBareWorldOn(t, 64<<20, fourNodes(1<<40))
	w.prepare()
	s, ns := w.open(1, 1, 100, Declaration{}), w.namespace(testSpec("m", 60<<10, 1))
	nodes := []int{0, 1, 4, 5}
	const perSlab = 34
	kept := map[int]int{} // node by chunk
	for chunk := range 4 * 6 * perSlab {
		node := nodes[chunk%4]
		w.storeNear(s, ns, node, chunk)
		if chunk/4%3 == 0 {
			kept[chunk] = node
		}
	}
	w.m.mu.Lock()
	for chunk := range 4 * 6 * perSlab {
		if _, stays := kept[chunk]; !stays {
			hash := testHash(chunk)
			rec, _ := w.m.findLocked(ns.ID, 0, &hash)
			w.m.dropLocked(rec, RemovedByCommand)
		}
	}
	w.m.mu.Unlock()
	for more := true; more; {
		for at := range w.m.alloc.homes { // somebody takes what is free, again and again
			w.m.alloc.homes[at].free = nil
		}
		more = w.m.Tick()
	}
	if w.m.Stats().SlotsMoved == 0 {
		t.Fatal("nothing was moved")
	}
	for chunk, node := range kept {
		if got := w.nodeOf(ns, chunk); got != node {
			t.Fatalf("chunk %d has moved from node %d to node %d", chunk, node, got)
		}
		if !w.checkBytes(s, ns, chunk, 0) {
			t.Fatalf("chunk %d is lost", chunk)
		}
	}
	w.m.validate(t)
}

// TestRowsAreOfOneNode: a size that needs runs of slabs takes none that spans
// nodes, also when it takes them from another size.
func TestRowsAreOfOneNode(t *testing.T) {
	w := newBareWorldOn(t, 192<<20, []NodeRoom{{0, 1 << 40}, {1, 1 << 40}, {2, 1 << 40}})
	w.prepare()
	s := w.open(1, 1, 100, Declaration{})
	short, long := w.namespace(testSpec("short", 256<<10, 1)), w.namespace(testSpec("long", int(w.m.seg.SlabBytes)*3/2, 1))
	for i := range 800 {
		w.storeNear(s, short, i%3, i)
	}
	c, near := w.m.alloc.class(w.m.seg.slotBytesFor(int(w.m.seg.SlabBytes)*3/2)), 0
	rows := w.m.donorsLocked(c, near)
	for _, d := range rows {
		if !w.m.alloc.sameHome(d.first, c.run) {
			t.Fatalf("the row of slabs at %d spans nodes", d.first)
		}
	}
	if len(rows) == 0 || int(w.m.alloc.slabs[rows[0].first].home) != near {
		t.Fatalf("%d rows, of which the first is not near", len(rows))
	}
	for i := range 60 {
		w.storeNear(s, long, i%3, 1000+i)
		w.m.validate(t) // looks at the homes of every run
	}
	if st := w.m.Stats(); st.SlabsTaken == 0 {
		t.Fatal("no slabs changed hands")
	}
}

// TestNodesAfterARestart: a segment is adopted with its chunks where they are,
// whatever nodes the machine has now; who works next to none of its parts is
// served from all.
func TestNodesAfterARestart(t *testing.T) {
	for name, now := range map[string][]NodeRoom{
		"the same": fourNodes(1 << 40), "one less": fourNodes(1 << 40)[:3], "one more": append(fourNodes(1<<40), NodeRoom{6, 1 << 40}),
		"one": {{0, 1 << 40}}, "off": nil,
	} {
		t.Run(name, func(t *testing.T) {
			w := newBareWorldOn(t, 32<<20, fourNodes(1<<40))
			for range 12 { // of 16: the last node has no memory yet
				if _, err := w.m.PrepareNext(); err != nil {
					t.Fatal(err)
				}
			}
			s, ns := w.open(1, 1, 100, Declaration{}), w.namespace(testSpec("m", 64<<10, 1))
			for i := range 90 {
				w.storeNear(s, ns, []int{0, 1, 4}[i%3], i)
			}
			before := w.m.Stats().Nodes
			w.nodes = now
			w.crash()
			s = w.open(1, 2, 100, Declaration{})
			w.m.validate(t)
			for i := range 90 {
				if !w.checkBytes(s, ns, i, 0) {
					t.Fatalf("chunk %d is lost", i)
				}
			}
			for i, n := range w.m.Stats().Nodes {
				if n != before[i] {
					t.Errorf("node %d: %+v, was %+v", n.Node, n, before[i])
				}
			}
			w.prepare()
			for i := range 100 {
				w.storeNear(s, ns, 5+i/50, 100+i) // 6 has no part of the store
			}
			w.m.validate(t)
			st := w.m.Stats()
			if st.Removed[RemovedEvicted] != 0 || st.Chunks != 190 {
				t.Fatalf("%d chunks, %d evicted", st.Chunks, st.Removed[RemovedEvicted])
			}
			for i := range 100 {
				if node := w.nodeOf(ns, 100+i); i < 50 && now != nil && node != 5 {
					t.Fatalf("chunk %d from node 5 is on node %d", 100+i, node)
				}
			}
		})
	}
}

// TestMemoryOfAllNodesComesEarly: while memory is being allocated every node has
// some, and in the end its even part. No stripe leaves a rest of a run.
func TestMemoryOfAllNodesComesEarly(t *testing.T) {
	w := newBareWorldOn(t, 200<<20, fourNodes(1<<40))
	for range 4 * stripeSlabs {
		if _, err := w.m.PrepareNext(); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range w.m.Stats().Nodes {
		if n.CapacityBytes != stripeSlabs*w.m.seg.SlabBytes {
			t.Errorf("of node %d %d bytes have come", n.Node, n.CapacityBytes)
		}
	}
	w.prepare()
	for _, n := range w.m.Stats().Nodes {
		if n.CapacityBytes != 50<<20 || n.SizeBytes != n.CapacityBytes {
			t.Errorf("node %d has %d bytes of %d", n.Node, n.CapacityBytes, n.SizeBytes)
		}
	}
	for run := 1; run <= maxRun; run++ {
		if stripeSlabs%run != 0 {
			t.Errorf("runs of %d slabs leave a rest", run)
		}
	}
}

// boundMemory writes down what is bound, and refuses from a node on.
type boundMemory struct {
	heapMemory
	bound  map[int]uint64
	refuse int
}

var errNotAllowed = errors.New("operation not permitted")

func (b *boundMemory) Bind(_, n uint64, node int) error {
	if node >= b.refuse {
		return errNotAllowed
	}
	b.bound[node] += n
	return nil
}

// TestBindingThatIsRefused: the store works unbound, and says so once.
func TestBindingThatIsRefused(t *testing.T) {
	for refuse, wantNodes := range map[int]int{0: 1, 4: 3, 9: 4} {
		layout, err := NewLayout([16]byte{1}, 32<<20)
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		mem := &boundMemory{make(heapMemory, layout.FileBytes), map[int]uint64{}, refuse}
		w := &world{tb: t, mem: mem.heapMemory, alive: map[uint32]bool{}, nodes: fourNodes(1 << 40)}
		opts := w.options()
		opts.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		if w.m, err = Create(mem, layout, opts); err != nil {
			t.Fatal(err)
		}
		w.prepare()
		s, ns := w.open(1, 1, 100, Declaration{}), w.namespace(testSpec("m", 256<<10, 1))
		for i := range 128 {
			w.storeNear(s, ns, 1, i)
		}
		w.m.validate(t)
		st := w.m.Stats()
		if st.Chunks != 128 || len(st.Nodes) != wantNodes {
			t.Errorf("refused from node %d on: %d chunks, nodes %+v", refuse, st.Chunks, st.Nodes)
		}
		for _, n := range st.Nodes {
			if n.Node != unbound && n.SizeBytes != mem.bound[n.Node] {
				t.Errorf("node %d: %d bytes are bound, %d are said to be", n.Node, mem.bound[n.Node], n.SizeBytes)
			}
		}
		if got, want := strings.Count(log.String(), "\n"), min(1, max(0, 5-refuse)); got != want || want > 0 && !strings.Contains(log.String(), "mbind") {
			t.Errorf("refused from node %d on: %d warnings: %s", refuse, got, &log)
		}
	}
}

// TestSpread: slabs are divided evenly as far as there is room, all of them, and
// no node gets so few that the longest run does not fit.
func TestSpread(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l, err := NewLayout([16]byte{1}, rapid.Uint64Range(minSlabBytes, 1<<40).Draw(t, "bytes"))
		if err != nil {
			t.Fatal(err)
		}
		size := uint64(l.Slabs) * l.SlabBytes
		rooms := make([]NodeRoom, rapid.IntRange(2, MaxNodes).Draw(t, "nodes"))
		for i := range rooms {
			rooms[i] = NodeRoom{i, rapid.Uint64Range(0, size).Draw(t, "room")}
		}
		sum, most, room := uint32(0), uint32(0), uint64(0)
		shares := spread(&l, rooms)
		for i, n := range shares {
			sum += n
			most = max(most, n)
			room += rooms[i].Bytes / l.SlabBytes
			if n > 0 && n < l.longestRun() {
				t.Fatalf("node %d has %d slabs, the longest run is %d", i, n, l.longestRun())
			}
		}
		if sum != l.Slabs {
			t.Fatalf("%d slabs of %d: %v", sum, l.Slabs, shares)
		}
		for i, n := range shares {
			fits := uint64(n)*l.SlabBytes <= rooms[i].Bytes
			if !fits && room >= uint64(l.Slabs)+uint64(len(rooms))*uint64(l.longestRun()) {
				t.Fatalf("node %d has %d slabs, more than its room, although all have enough: %v of %v", i, n, shares, rooms)
			}
			if n > 0 && n+1 < most && uint64(n+1)*l.SlabBytes <= rooms[i].Bytes {
				t.Fatalf("node %d has %d slabs and room for more, another has %d: %v", i, n, most, shares)
			}
		}
	})
}

// TestNodesThatCannotBe: whatever stands in the slab table for nodes, the segment
// is adopted with its chunks.
func TestNodesThatCannotBe(t *testing.T) {
	w := newWorld(t, 128<<20)
	s, ns := w.open(1, 1, 100, Declaration{}), w.namespace(testSpec("long", int(w.m.seg.SlabBytes)*3/2, 1))
	for i := range 20 {
		w.store(s, ns, i, 0)
	}
	for id := range w.m.seg.Slabs {
		w.m.seg.setSlabNode(id, int(id)*100) // more than there may be, and too high ones
	}
	w.crash()
	w.open(1, 2, 100, Declaration{})
	w.m.validate(t) // chunks whose run is torn apart are gone
	if n := len(w.m.nodes); n > maxHomes {
		t.Fatalf("%d homes", n)
	}
	if st := w.m.Stats(); len(st.Nodes) > maxHomes || st.CapacityBytes != st.SizeBytes {
		t.Fatalf("%+v", st.Nodes)
	}
}
