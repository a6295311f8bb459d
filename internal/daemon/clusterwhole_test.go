package daemon

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/admin/adminpb"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
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

// TestMasterBeginsAnewWhileIdle: that a master has begun anew is noticed though nobody
// asked it while it was away: what is used is put again.
func TestMasterBeginsAnewWhileIdle(t *testing.T) {
	python := mooncaketest.Python(t)
	onLoopback(t)
	master := mooncaketest.StartMaster(t, python)
	mooncaketest.StartPeer(t, python, master, lentBytes)
	n := startFarNode(t, python, writeCluster(t, master), nil)
	own := blobOf(100, 8)
	put(t, n.chunks, own)
	n.awaitPuts(8)
	untilLong(t, "there is a canary", func() bool { return strings.Contains(masterKeys(t), "mooncake-sidecar@canary@") })
	put(t, n.chunks, blobOf(101, 1))
	n.awaitPuts(9) // and so is the canary, which came before
	master.Kill()
	master.Restart(t)
	untilLong(t, "the node's own chunks are put again", func() bool {
		return hit(t, n.lookup, own) == 128 && n.metric(`cluster_chunks_total{direction="put",result="stored"}`) >= 9+8
	})
	t.Logf("%d times in service", n.metric("cluster_outages_total")+1)
}

// masterKeys is what this test's master says that it has.
func masterKeys(t *testing.T) string {
	t.Helper()
	_, command := childOf(t, os.Getpid(), "--metrics_port=")
	_, port, _ := strings.Cut(command, "--metrics_port=")
	port, _, _ = strings.Cut(port, "\x00")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	_, keys := fetchFrom(t, client, "http://127.0.0.1:"+port+"/get_all_keys")
	return keys
}
