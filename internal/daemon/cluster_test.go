package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/wire"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded/client"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/cluster"
)

// farNode is a node with its own lookupd and segment, over a cluster.
type farNode struct {
	t      *testing.T
	dir    string
	cfg    *config.LookupdConfig
	run    *running
	chunks *client.Client
	lookup string
}

// startFarNode starts a node and waits until the cluster is in service there.
func startFarNode(t *testing.T, python, file string, adjust func(*config.LookupdConfig)) *farNode {
	t.Helper()
	n := &farNode{t: t, dir: shortDir(t)}
	n.cfg = lookupdConfig(t, n.dir)
	n.cfg.Store, n.cfg.StorePython, n.cfg.ConfigPath = config.StoreMooncake, python, file
	if adjust != nil {
		adjust(n.cfg)
	}
	n.start()
	n.chunks = readyStore(t, n.dir)
	n.lookup = filepath.Join(n.dir, "lookup")
	engine(t, n.dir, n.lookup)
	n.awaitService(true)
	return n
}

func (n *farNode) start() {
	n.t.Helper()
	n.run = start(n.t, func(ctx context.Context) error { return RunLookupd(ctx, n.cfg, Control{}, quiet) })
	until(n.t, "lookupd answers", func() bool { _, err := LookupdStatus(n.t.Context(), n.dir); return err == nil })
}

// metric returns a series of the node's lookupd.
func (n *farNode) metric(series string) int {
	n.t.Helper()
	_, text := fetch(n.t, n.dir, config.LookupdSocket, "GET", "/metrics", "")
	return sample(text, series)
}

// untilLong is until where Mooncake's client has to be set up, which on a busy
// machine fails at first, and is tried again after a pause.
func untilLong(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(4 * patience); !ok() && time.Now().Before(end); {
		timer := time.NewTimer(10 * time.Millisecond)
		<-timer.C
	}
	until(t, what, ok)
}

// awaitService waits until /readyz says of the cluster that it is in service, or
// not; the node is ready in either case.
func (n *farNode) awaitService(want bool) {
	n.t.Helper()
	untilLong(n.t, "the cluster's state", func() bool {
		code, text := fetch(n.t, n.dir, config.LookupdSocket, "GET", "/readyz", "")
		var answer struct {
			Checks []struct {
				Check        string
				OK, Degraded bool
				Reason       string
			}
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			n.t.Fatal(err)
		}
		for _, c := range answer.Checks {
			if c.Check == "cluster" {
				if c.OK == c.Degraded || c.OK == (c.Reason != "") {
					n.t.Fatalf("/readyz says %+v", c)
				}
				return c.OK == want && (code == 200 || !want)
			}
		}
		n.t.Fatalf("/readyz names no cluster: %s", text)
		return false
	})
}

// awaitPuts waits until the cluster has taken so many chunks of the node in all; what
// is hit may be put again.
func (n *farNode) awaitPuts(want int) {
	n.t.Helper()
	untilLong(n.t, "puts", func() bool { return n.metric(`cluster_chunks_total{direction="put",result="stored"}`) >= want })
}

// blobOf makes n hashes that no other seed has.
func blobOf(seed byte, n int) []byte {
	var blob []byte
	for i := range n {
		blob = append(blob, append(bytes.Repeat([]byte{seed}, 14), byte(i), seed)...)
	}
	return blob
}

// load gets all chunks as a worker does, and counts those that are whole; their
// bytes must be those that put stores.
func (n *farNode) load(spec *kv.NamespaceSpec, blob []byte) (whole int, far int) {
	n.t.Helper()
	hashes, err := kv.NewHashBlob(blob, 16)
	if err != nil {
		n.t.Fatal(err)
	}
	ns, err := n.chunks.OpenNamespace(n.t.Context(), spec)
	if err != nil {
		n.t.Fatal(err)
	}
	items := make([]store.GetItem, hashes.Len())
	for i := range items {
		items[i].Hash = hashes.At(i)
	}
	var got []store.GetResult
	until(n.t, "nothing is loading", func() bool {
		if got, err = n.chunks.Get(n.t.Context(), ns, store.Lease{Engine: "e", Request: "r"}, items); err != nil {
			n.t.Fatal(err)
		}
		var refs []uint64
		loading := false
		for _, g := range got {
			loading = loading || g.Status == store.GetLoading
			if g.Status == store.GetReady {
				refs = append(refs, g.Ref)
			}
		}
		if loading {
			if err := n.chunks.Release(n.t.Context(), refs); err != nil {
				n.t.Fatal(err)
			}
		}
		return !loading
	})
	for i, g := range got {
		if g.Status != store.GetReady {
			continue
		}
		whole++
		if g.Tier == store.TierRemote {
			far++
		}
		data := n.chunks.Segments()[g.Place.Segment].Data()[g.Place.Offset:][:g.Place.Bytes]
		if !bytes.Equal(data, bytes.Repeat([]byte{byte(i + 1)}, len(data))) || crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)) != g.Checksum {
			n.t.Errorf("chunk %d has other bytes", i)
		}
		if err := n.chunks.Release(n.t.Context(), []uint64{g.Ref}); err != nil {
			n.t.Fatal(err)
		}
	}
	return whole, far
}

// awaitHit waits for a hit of a length: the node may still be told.
func (n *farNode) awaitHit(blob []byte, want int) {
	n.t.Helper()
	until(n.t, "the hit", func() bool { return hit(n.t, n.lookup, blob) == want })
}

// TestTwoNodesOverACluster: what one node stores the other looks up and loads; a
// node that was not there finds it too, whether the first one lives or not.
func TestTwoNodesOverACluster(t *testing.T) {
	c := startCluster(t)
	overACluster(t, c.file, func(cfg *config.LookupdConfig) { cfg.StorePython = c.python })
}

// overACluster is TestTwoNodesOverACluster for a way to the cluster.
func overACluster(t *testing.T, file string, by func(*config.LookupdConfig)) {
	a, b := startFarNode(t, "", file, by), startFarNode(t, "", file, by)
	if got := hit(t, b.lookup, blobOf(1, 40)); got != 0 {
		t.Errorf("a hit of %d in an empty cluster", got)
	}
	put(t, a.chunks, blobOf(1, 40))
	a.awaitPuts(40)
	time.Sleep(2 * time.Second) // what b was told of their absence is old then
	b.awaitHit(blobOf(1, 40), 640)
	if whole, far := b.load(spec(), blobOf(1, 40)); whole != 40 || far == 0 {
		t.Errorf("%d chunks were loaded, %d of them from the cluster", whole, far)
	}
	if whole, far := b.load(spec(), blobOf(1, 40)); whole != 40 || far == 0 { // of the same lease
		t.Errorf("again, %d chunks were loaded, %d of them from the cluster", whole, far)
	}
	if got := b.metric(`cluster_chunks_total{direction="get",result="loaded"}`); got != 40 {
		t.Errorf("%d chunks came from the cluster", got)
	}
	if got := b.metric(`cluster_chunks_total{direction="put",result="stored"}`); got != 0 {
		t.Errorf("%d chunks that came from the cluster went back there", got)
	}
	if got := a.metric(`cluster_bytes_total{direction="put"}`); got != 40*4096 {
		t.Errorf("%d bytes were put", got)
	}
	a.run.end()
	c := startFarNode(t, "", file, by)
	c.awaitHit(blobOf(1, 40), 640)
	if whole, _ := c.load(spec(), blobOf(1, 40)); whole != 40 {
		t.Errorf("%d chunks were loaded", whole)
	}
	// A node without the cluster, over the same segment, has what came.
	if _, text := fetch(t, c.dir, config.LookupdSocket, "GET", "/readyz", ""); !strings.Contains(text, `"check": "cluster"`) {
		t.Errorf("/readyz says %s", text)
	}
}

// strike is something that befalls the cluster or the way to it.
type strike struct {
	name string
	// down brings it about, up ends it; kept: what was stored is there after it.
	down, up func()
	kept     bool
}

// TestClusterFaults: each fault ends in misses, in time, and heals by itself. The
// node's own chunks are hit all the while.
func TestClusterFaults(t *testing.T) {
	c := startCluster(t)
	master, n := c.master, c.node(nil)
	process := func(signal syscall.Signal) func() {
		return func() {
			if err := syscall.Kill(sideProcess(t, os.Getpid()), signal); err != nil {
				t.Fatal(err)
			}
		}
	}
	nothing := func() {}
	own := blobOf(100, 8)
	put(t, n.chunks, own)
	for i, s := range []strike{
		{"side process killed", process(syscall.SIGKILL), nothing, true},
		{"side process stopped", process(syscall.SIGSTOP), nothing, true},
		{"master stopped", func() { master.Signal(t, syscall.SIGSTOP) }, func() { master.Signal(t, syscall.SIGCONT) }, true},
		{"master killed", master.Kill, func() { master.Restart(t) }, false},
	} {
		t.Run(s.name, func(t *testing.T) {
			stored := blobOf(byte(1+i), 20)
			put(t, n.chunks, stored)
			s.down()
			struck := time.Now()
			// Nobody has asked for these, so that the cluster must be.
			slowest := time.Duration(0)
			for k := range byte(20) {
				begun := time.Now()
				if got := hit(t, n.lookup, blobOf(200+k, 20)); got != 0 {
					t.Errorf("a hit of %d", got)
				}
				slowest = max(slowest, time.Since(begun))
				if got := hit(t, n.lookup, own); got != 128 {
					t.Errorf("a hit of %d among the node's own chunks", got)
				}
			}
			t.Logf("%s: a miss took %s at most", s.name, slowest.Round(time.Millisecond))
			if slowest > 5*time.Second {
				t.Errorf("a lookup took %s", slowest)
			}
			if s.name != "side process killed" { // which may be back already
				until(t, "the outage is seen", func() bool { hit(t, n.lookup, blobOf(250, 20)); return n.metric("cluster_in_service") == 0 })
				t.Logf("%s: seen after %s", s.name, time.Since(struck).Round(time.Millisecond))
			}
			put(t, n.chunks, blobOf(byte(50+i), 4)) // a store is not in the way
			s.up()
			risen := time.Now()
			n.awaitService(true)
			until(t, "in service", func() bool { return n.metric("cluster_in_service") == 1 })
			t.Logf("%s: in service %s after its end", s.name, time.Since(risen).Round(time.Millisecond))
			if !s.kept {
				// What is used again is put again: the new master knows nothing.
				shared := n.metric(`cluster_chunks_total{direction="put",result="stored"}`)
				until(t, "the node's own chunks are put again", func() bool {
					return hit(t, n.lookup, own) == 128 && n.metric(`cluster_chunks_total{direction="put",result="stored"}`) >= shared+8
				})
			}
			again := blobOf(byte(30+i), 20)
			before := n.metric(`cluster_chunks_total{direction="put",result="stored"}`)
			until(t, "a put", func() bool {
				again[0]++ // another chunk, for those that were refused are not tried again
				put(t, n.chunks, again[:16])
				timer := time.NewTimer(100 * time.Millisecond)
				<-timer.C
				return n.metric(`cluster_chunks_total{direction="put",result="stored"}`) > before
			})
			t.Logf("%s: stores again %s after its end", s.name, time.Since(risen).Round(time.Millisecond))
		})
	}
	other := c.node(nil)
	late := blobOf(77, 20)
	put(t, n.chunks, late)
	other.awaitHit(late, 320)
	if whole, far := other.load(spec(), late); whole != 20 || far == 0 {
		t.Errorf("after all of it, %d chunks were loaded, %d of them from the cluster", whole, far)
	}
}

// sideProcess finds the side process that a lookupd in some process has started.
func sideProcess(t *testing.T, of int) int {
	t.Helper()
	pid, _ := childOf(t, of, "mooncake-sidecar-store-agent")
	return pid
}

// childOf finds a child of a process by a part of its command line.
func childOf(t *testing.T, of int, part string) (pid int, command string) {
	t.Helper()
	tasks := fmt.Sprintf("/proc/%d/task/", of)
	entries, err := os.ReadDir(tasks)
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range entries {
		children, err := os.ReadFile(tasks + task.Name() + "/children")
		if err != nil {
			continue // the thread is gone
		}
		for child := range strings.FieldsSeq(string(children)) {
			line, err := os.ReadFile("/proc/" + child + "/cmdline")
			if err == nil && bytes.Contains(line, []byte(part)) {
				pid, err := strconv.Atoi(child)
				if err != nil {
					t.Fatal(err)
				}
				return pid, string(line)
			}
		}
	}
	t.Fatalf("process %d has no child %s", of, part)
	return 0, ""
}

// TestKilledOverACluster: a lookupd that is killed takes its side process along, and
// the next one takes the segment over: it has the hits, and the cluster again.
func TestKilledOverACluster(t *testing.T) {
	t.Setenv(cluster.EnvPath, startCluster(t).file)
	n := &farNode{t: t, dir: shortDir(t)}
	n.lookup = filepath.Join(n.dir, "lookup")
	startWorker(t, n.dir) // it keeps the segment
	first := spawn(t, "lookupd-over-cluster:"+n.dir)
	answers := func() bool { _, err := LookupdStatus(t.Context(), n.dir); return err == nil }
	until(t, "lookupd answers", answers)
	n.chunks = readyStore(t, n.dir)
	n.awaitService(true)
	put(t, n.chunks, blobOf(1, 8))
	n.awaitPuts(8)
	until(t, "the worker has its store", func() bool {
		s, err := WorkerStatus(t.Context(), n.dir, "host-0")
		return err == nil && s.StoreReady
	})
	side := sideProcess(t, first.command.Process.Pid)
	first.kill()
	killed := time.Now()
	until(t, "the side process is dead", func() bool { return syscall.Kill(side, 0) != nil })
	t.Logf("the side process was dead and buried within %s", time.Since(killed).Round(time.Millisecond))
	spawn(t, "lookupd-over-cluster:"+n.dir)
	until(t, "lookupd answers", answers)
	until(t, "nobody is awaited", func() bool {
		s, err := LookupdStatus(t.Context(), n.dir)
		return err == nil && s.Store.UndeclaredClients == 0 && n.chunks.Ready()
	})
	engine(t, n.dir, n.lookup)
	if got := hit(t, n.lookup, blobOf(1, 8)); got != 128 {
		t.Errorf("a hit of %d in the segment", got)
	}
	n.awaitService(true)
	put(t, n.chunks, blobOf(2, 8))
	n.awaitPuts(8)
}

// TestShardsOfAllRanks: a chunk of two ranks is there when both shards are, and
// one of which the cluster has a part is none.
func TestShardsOfAllRanks(t *testing.T) {
	c := startCluster(t)
	a, b := c.node(nil), c.node(nil)
	two := spec()
	two.TP, two.Groups[0].Shards = 2, 2
	blob := blobOf(3, 5)
	putShards(t, a.chunks, two, blob, 2)
	a.awaitPuts(5)
	if got := a.metric(`cluster_bytes_total{direction="put"}`); got != 2*5*4096 {
		t.Errorf("%d bytes were put", got)
	}
	hashes, err := kv.NewHashBlob(blob, 16)
	if err != nil {
		t.Fatal(err)
	}
	var code int
	last := hashes.At(4)
	key, err := mooncake.NamespaceKeys(two)
	if err != nil {
		t.Fatal(err)
	}
	c.peer.Ask("remove", map[string]any{"key": kv.PoolKey(key.Prefixes[0][1], last[:16])}, &code)
	if code != 0 {
		t.Fatalf("remove: %d", code)
	}
	engineOf(t, b.dir, filepath.Join(b.dir, "two"), two)
	until(t, "the hit", func() bool { return hit(t, filepath.Join(b.dir, "two"), blob) == 64 })
	ns, err := b.chunks.OpenNamespace(t.Context(), two)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "both shards", func() bool {
		got, err := b.chunks.Get(t.Context(), ns, store.Lease{Engine: "e", Request: "r"}, []store.GetItem{{Hash: hashes.At(2)}, {Hash: hashes.At(2), Shard: 1}, {Hash: last}})
		if err != nil {
			t.Fatal(err)
		}
		if got[2].Status != store.GetAbsent {
			t.Fatal("a chunk without one of its shards was promised")
		}
		for i, g := range got[:2] {
			if g.Status == store.GetReady {
				data := b.chunks.Segments()[0].Data()[g.Place.Offset:][:g.Place.Bytes]
				if want := byte(3 + 100*i); data[0] != want || data[4095] != want {
					t.Errorf("shard %d begins with %d, want %d", i, data[0], want)
				}
				if err := b.chunks.Release(t.Context(), []uint64{g.Ref}); err != nil {
					t.Fatal(err)
				}
			}
		}
		return got[0].Status == store.GetReady && got[1].Status == store.GetReady
	})
}

// TestFullCluster: what the cluster has no room for stays on the node; the node
// goes on, and shares again when there is room.
func TestFullCluster(t *testing.T) {
	n := startClusterOf(t, 16<<20).node(nil)
	large := spec()
	large.Groups[0].ShardBytes = 256 << 10
	begun, i := time.Now(), byte(0)
	full := func() bool {
		return n.metric(`cluster_chunks_total{direction="put",result="no_room"}`)+n.metric(`cluster_refused_chunks_total{reason="full"}`) > 0
	}
	until(t, "no room", func() bool { // 6 MiB at a time, faster than the master evicts
		putAs(t, n.chunks, large, blobOf(1+i, 24))
		i++
		return full()
	})
	t.Logf("no room after %d MiB and %s", 6*int(i), time.Since(begun).Round(time.Millisecond))
	n.awaitService(true)
	stored := n.metric(`cluster_chunks_total{direction="put",result="stored"}`)
	until(t, "there is room again", func() bool {
		timer := time.NewTimer(200 * time.Millisecond)
		<-timer.C
		putAs(t, n.chunks, large, blobOf(1+i, 1))
		i++
		return n.metric(`cluster_chunks_total{direction="put",result="stored"}`) > stored
	})
	t.Logf("stores again after %s", time.Since(begun).Round(time.Millisecond))
}

// TestWriteBack: chunks go to the cluster when memory needs their room, and come
// back from there.
func TestWriteBack(t *testing.T) {
	n := startCluster(t).node(func(c *config.LookupdConfig) { c.Write = config.WriteBack })
	large := spec()
	large.Groups[0].ShardBytes = 256 << 10
	putAs(t, n.chunks, large, blobOf(1, 4))
	if got := n.metric(`cluster_chunks_total{direction="put",result="stored"}`); got != 0 {
		t.Errorf("%d chunks were stored while there was room", got)
	}
	for i := range byte(100) { // 100 MiB into 16
		putAs(t, n.chunks, large, blobOf(2+i, 4))
		before := i
		until(t, "what is written ahead", func() bool { return before < 12 || n.metric(`cluster_queue_bytes{direction="put"}`) == 0 })
	}
	if n.metric(`cluster_chunks_total{direction="put",result="stored"}`) < 40 { // memory has room for about 60
		t.Errorf("%d of 404 chunks were stored", n.metric(`cluster_chunks_total{direction="put",result="stored"}`))
	}
	engineOf(t, n.dir, filepath.Join(n.dir, "large"), large)
	until(t, "what memory had no room for comes back from the cluster", func() bool {
		for i := range byte(60) { // a lookup does not wait long for the cluster
			if hit(t, filepath.Join(n.dir, "large"), blobOf(2+i, 4)) == 64 {
				if whole, far := n.load(large, blobOf(2+i, 4)); whole == 4 && far > 0 {
					return true
				}
			}
		}
		return false
	})
}

// TestResetOverACluster: what was stored before a reset is not used after it, and
// is removed from the cluster only where that was asked for.
func TestResetOverACluster(t *testing.T) {
	for mode, want := range map[string]int{config.ResetNode: 128, config.ResetCluster: 0} {
		t.Run(mode, func(t *testing.T) {
			c := startCluster(t)
			a := c.node(func(c *config.LookupdConfig) { c.Reset = mode })
			put(t, a.chunks, blobOf(1, 8))
			a.awaitPuts(8)
			b := c.node(nil)
			if reply := request(t, a.lookup, []byte(wire.TagReset)); len(reply) != 1 || reply[0][0] != wire.OK {
				t.Fatalf("the reset is answered %v", reply)
			}
			for range 5 {
				if got := hit(t, a.lookup, blobOf(1, 8)); got != 0 {
					t.Errorf("a hit of %d after a reset", got)
				}
			}
			if mode == config.ResetCluster {
				// What nobody has a lease on is gone at once.
				until(t, "it is gone", func() bool { return hit(t, b.lookup, blobOf(1, 8)) == want })
				return
			}
			b.awaitHit(blobOf(1, 8), want)
			put(t, a.chunks, blobOf(9, 3)) // not shared: it could not be told from what was before
			if got := a.metric(`cluster_refused_chunks_total{reason="reset"}`); got != 3 {
				t.Errorf("%d chunks were not shared because of the reset", got)
			}
		})
	}
}
