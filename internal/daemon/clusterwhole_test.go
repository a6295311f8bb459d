package daemon

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/admin/adminpb"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/cluster"
)

// operator returns an operator of the node.
func (n *farNode) operator() *Operator {
	n.t.Helper()
	o, err := NewOperator(n.dir)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = o.Close() })
	return o
}

// TestOperatorsReachTheCluster: a prefetch brings what other nodes stored, and a
// removal removes it there, where mooncake_reset says that the model's objects are the
// operator's.
func TestOperatorsReachTheCluster(t *testing.T) {
	library, file := doubleLibrary(t), doubleCluster(t, "lease_ms=100")
	node := func() *farNode {
		return startFarNode(t, "", file, func(c *config.LookupdConfig) { c.Library, c.Reset, c.Lease = library, config.ResetCluster, time.Second })
	}
	a, b := node(), node()
	blob, digest := blobOf(1, 20), spec().Digest()
	put(t, a.chunks, blob)
	a.awaitPuts(20)
	reply, err := b.operator().Prefetch(t.Context(), &adminpb.PrefetchRequest{Keys: &adminpb.Keys{Namespace: digest[:], Hashes: blob}})
	if err != nil || reply.GetBegunChunks() != 20 {
		t.Fatalf("prefetch: %+v, %v", reply, err)
	}
	until(t, "they are in memory", func() bool { return b.metric(`cluster_chunks_total{direction="get",result="loaded"}`) == 20 })
	if whole, _ := b.load(spec(), blob); whole != 20 {
		t.Errorf("%d chunks were loaded", whole)
	}
	remove := &adminpb.RemoveRequest{Namespace: digest[:], Scope: &adminpb.RemoveRequest_Hashes_{Hashes: &adminpb.RemoveRequest_Hashes{Hashes: blob[:16*10]}}}
	for _, n := range []*farNode{a, b} { // each has them in its memory
		if _, err := n.operator().Remove(t.Context(), remove); err != nil {
			t.Fatal(err)
		}
		if got := hit(t, n.lookup, blob); got != 0 {
			t.Errorf("a hit of %d of what was removed", got)
		}
	}
	// A node that finds them brings them into its memory.
	var c *farNode
	until(t, "they have gone from the cluster", func() bool { c = node(); return hit(t, c.lookup, blob) == 0 })
	if reply, err := c.operator().Prefetch(t.Context(), &adminpb.PrefetchRequest{Keys: &adminpb.Keys{Namespace: digest[:], Hashes: blob[16*10:]}}); err != nil || reply.GetBegunChunks() != 10 {
		t.Errorf("of the others: %+v, %v", reply, err)
	}
}

// spawnedReset says what the lookupd that a test spawns over a cluster does with resets.
const spawnedReset = "MOONCAKE_SIDECAR_TEST_RESET"

// TestOperatorsRemovalOutlivesAKill: what an operator has removed goes though its daemon is
// killed while somebody else reads it, and is not found meanwhile.
func TestOperatorsRemovalOutlivesAKill(t *testing.T) {
	c := startCluster(t)
	t.Setenv(cluster.EnvPath, c.file)
	t.Setenv(spawnedReset, config.ResetCluster)
	n := &farNode{t: t, dir: shortDir(t)}
	n.lookup = filepath.Join(n.dir, "lookup")
	startWorker(t, n.dir) // it keeps the segment
	answers := func() bool { _, err := LookupdStatus(t.Context(), n.dir); return err == nil }
	first := spawn(t, "lookupd-over-cluster:"+n.dir)
	until(t, "lookupd answers", answers)
	n.chunks = readyStore(t, n.dir)
	n.awaitService(true)
	blob, digest := blobOf(1, 8), spec().Digest()
	put(t, n.chunks, blob)
	n.awaitPuts(8)
	until(t, "the worker has its store", func() bool {
		s, err := WorkerStatus(t.Context(), n.dir, "host-0")
		return err == nil && s.StoreReady
	})
	other := c.node(nil)
	other.awaitHit(blob, 128) // and so has a lease on all of them
	remove := &adminpb.RemoveRequest{Namespace: digest[:], Scope: &adminpb.RemoveRequest_Hashes_{Hashes: &adminpb.RemoveRequest_Hashes{Hashes: blob[:16*4]}}}
	if _, err := n.operator().Remove(t.Context(), remove); err != nil {
		t.Fatal(err)
	}
	first.kill()
	keys, err := mooncake.NamespaceKeys(spec())
	if err != nil {
		t.Fatal(err)
	}
	there := func(i int) bool {
		return strings.Contains(masterKeys(t), kv.PoolKey(keys.Prefixes[0][0], blob[16*i:][:16]))
	}
	if !there(0) || !there(7) {
		t.Fatal("they were removed before the kill, or are called something else")
	}
	spawn(t, "lookupd-over-cluster:"+n.dir)
	until(t, "lookupd answers", answers)
	until(t, "nobody is awaited", func() bool {
		s, err := LookupdStatus(t.Context(), n.dir)
		return err == nil && s.Store.UndeclaredClients == 0 && n.chunks.Ready()
	})
	engine(t, n.dir, n.lookup)
	n.awaitService(true)
	if got := hit(t, n.lookup, blob); got != 0 {
		t.Errorf("a hit of %d of what was removed", got)
	}
	untilLong(t, "they have gone from the cluster", func() bool { return !there(0) && !there(1) && !there(2) && !there(3) })
	for i := 4; i < 8; i++ {
		if !there(i) {
			t.Errorf("chunk %d has gone, which nobody removed", i)
		}
	}
	until(t, "nothing is noted any more", func() bool {
		_, err := os.Stat(filepath.Join(n.dir, config.RemovalsFile))
		return errors.Is(err, fs.ErrNotExist)
	})
}

// TestMasterBeginsAnewWhileIdle: that a master has begun anew is noticed though nobody
// asked it while it was away: what is used is put again.
func TestMasterBeginsAnewWhileIdle(t *testing.T) {
	c := startCluster(t)
	n := c.node(nil)
	own := blobOf(100, 8)
	put(t, n.chunks, own)
	n.awaitPuts(8)
	untilLong(t, "there is a canary", func() bool { return strings.Contains(masterKeys(t), "mooncake-sidecar@canary@") })
	put(t, n.chunks, blobOf(101, 1))
	n.awaitPuts(9) // and so is the canary, which came before
	c.master.Kill()
	c.master.Restart(t)
	untilLong(t, "the node's own chunks are put again", func() bool {
		return hit(t, n.lookup, own) == 128 && n.metric(`cluster_chunks_total{direction="put",result="stored"}`) >= 9+8
	})
	t.Logf("%d times in service", n.metric("cluster_outages_total")+1)
}

// masterKeys is what this test's master says that it has.
func masterKeys(t *testing.T) string {
	t.Helper()
	return masterPage(t, "/get_all_keys")
}

// masterPage is a page of this test's master.
func masterPage(t *testing.T, path string) string {
	t.Helper()
	_, command := childOf(t, os.Getpid(), "--metrics_port=")
	_, port, _ := strings.Cut(command, "--metrics_port=")
	port, _, _ = strings.Cut(port, "\x00")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	_, text := fetchFrom(t, client, "http://127.0.0.1:"+port+path)
	return text
}
