package daemon

import (
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// pause is how long a test lets the world go on.
func pause(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
}

// sharedBy stores chunks on one node until the other loads all of them from the
// cluster: of a cluster that heals, some may be lost.
func sharedBy(t *testing.T, from, to *farNode, seed byte) {
	t.Helper()
	blob := blobOf(seed, 20)
	untilLong(t, "chunks go from one node to the other", func() bool {
		for at := 0; at < len(blob); at += 16 {
			blob[at]++ // others
		}
		before := from.metric(`cluster_chunks_total{direction="put",result="stored"}`)
		put(t, from.chunks, blob)
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); pause(20 * time.Millisecond) {
			if from.metric(`cluster_chunks_total{direction="put",result="stored"}`) < before+20 || hit(t, to.lookup, blob) != 320 {
				continue
			}
			if whole, far := to.load(spec(), blob); whole == 20 && far > 0 {
				return true
			}
		}
		return false
	})
}

// TestStorageNodeKilled: what a dead storage node had is a miss, in time, and what is
// stored afterwards goes to the others.
func TestStorageNodeKilled(t *testing.T) {
	c := startCluster(t)
	c.lend(lentBytes)
	a, b := c.node(nil), c.node(nil)
	blob := blobOf(1, 40)
	put(t, a.chunks, blob)
	a.awaitPuts(40)
	c.peer.Kill()
	struck := time.Now()
	slowest, lost := time.Duration(0), 0
	until(t, "the master misses the node, and a hit is what can be loaded", func() bool {
		missed := strings.Contains(masterPage(t, "/metrics"), fmt.Sprintf("master_total_capacity_bytes %d\n", lentBytes))
		begun := time.Now()
		tokens := hit(t, b.lookup, blob)
		whole, _ := b.load(spec(), blob[:tokens])
		slowest = max(slowest, time.Since(begun))
		lost = max(lost, tokens/16-whole)
		return missed && whole == tokens/16
	})
	t.Logf("a lookup and its load took %s at most, %d chunks of a hit were reported as lost; hits are what can be loaded %s after the kill",
		slowest.Round(time.Millisecond), lost, time.Since(struck).Round(time.Millisecond))
	if got := hit(t, a.lookup, blob); got != 640 {
		t.Errorf("a hit of %d on the node that computed them", got)
	}
	sharedBy(t, a, b, 2)
	t.Logf("all that is stored is loaded again %s after the kill", time.Since(struck).Round(time.Millisecond))
}

// TestStorageNodeStopped: a load from a storage node that does not answer waits, and
// is whole when it does; of one that took longer than the lease nothing is used, for
// its memory may have been given to others.
func TestStorageNodeStopped(t *testing.T) {
	const stopped = 3 * time.Second
	for name, lease := range map[string]time.Duration{"within the lease": 10 * time.Second, "beyond it": time.Second} {
		t.Run(name, func(t *testing.T) {
			c := startCluster(t, "--default_kv_lease_ttl="+lease.String())
			leased := func(c *config.LookupdConfig) { c.Lease = lease }
			a, b := c.node(leased), c.node(leased)
			blob := blobOf(1, 20)
			put(t, a.chunks, blob)
			a.awaitPuts(20)
			c.peer.Signal(t, syscall.SIGSTOP)
			timer := time.AfterFunc(stopped, func() { c.peer.Signal(t, syscall.SIGCONT) })
			defer timer.Stop()
			b.awaitHit(blob, 320)
			begun := time.Now()
			whole, _ := b.load(spec(), blob)
			took, expired := time.Since(begun), b.metric(`cluster_errors_total{code="-707"}`)
			t.Logf("%d of 20 chunks after %s, %d leases ran out", whole, took.Round(time.Millisecond), expired)
			if lease > stopped && (whole != 20 || expired != 0) || lease < stopped && (whole == 20 || expired == 0) {
				t.Errorf("%d chunks, %d leases ran out", whole, expired)
			}
			risen := time.Now()
			until(t, "all of it is loaded", func() bool {
				if hit(t, b.lookup, blob) != 320 {
					return false
				}
				whole, _ := b.load(spec(), blob)
				return whole == 20
			})
			t.Logf("all of it is loaded %s later", time.Since(risen).Round(time.Millisecond))
		})
	}
}

// TestMasterGoneForAMinute: lookups go on as misses all the while, the node's own
// chunks are hit, and the next master is in service without anybody's help.
func TestMasterGoneForAMinute(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute")
	}
	c := startCluster(t)
	a, b := c.node(nil), c.node(nil)
	own := blobOf(100, 8)
	put(t, a.chunks, own)
	a.awaitPuts(8)
	c.master.Kill()
	slowest := time.Duration(0)
	for i, killed := byte(0), time.Now(); time.Since(killed) < time.Minute; i++ {
		begun := time.Now()
		if got := hit(t, a.lookup, blobOf(120+i, 20)); got != 0 {
			t.Errorf("a hit of %d", got)
		}
		slowest = max(slowest, time.Since(begun))
		if got := hit(t, a.lookup, own); got != 128 {
			t.Errorf("a hit of %d among the node's own chunks", got)
		}
		pause(time.Second)
	}
	c.master.Restart(t)
	risen := time.Now()
	a.awaitService(true)
	b.awaitService(true)
	t.Logf("a miss took %s at most; in service %s after the next master serves", slowest.Round(time.Millisecond), time.Since(risen).Round(time.Millisecond))
	sharedBy(t, a, b, 1)
	t.Logf("all that is stored is loaded again %s after that", time.Since(risen).Round(time.Millisecond))
}

// slowLink is a way to a server on which everything takes longer, by delay each way.
type slowLink struct {
	delay atomic.Int64
	to    string
}

// startSlowLink listens on loopback; it ends with the test.
func startSlowLink(t *testing.T, to string) (*slowLink, string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	l := &slowLink{to: to}
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", l.to)
			if err != nil {
				_ = near.Close()
				continue
			}
			go l.carry(near, far)
			go l.carry(far, near)
		}
	}()
	return l, listener.Addr().String()
}

// carry takes bytes from one side to the other, as late as delay says.
func (l *slowLink) carry(from, to net.Conn) {
	type piece struct {
		bytes []byte
		due   time.Time
	}
	pieces := make(chan piece, 1<<12)
	go func() {
		defer to.Close() //nolint:errcheck // the other side sees it end
		for p := range pieces {
			pause(time.Until(p.due))
			if _, err := to.Write(p.bytes); err != nil {
				_ = from.Close()
			}
		}
	}()
	defer close(pieces)
	for {
		buffer := make([]byte, 64<<10)
		n, err := from.Read(buffer)
		if n > 0 {
			pieces <- piece{buffer[:n], time.Now().Add(time.Duration(l.delay.Load()))}
		}
		if err != nil {
			return
		}
	}
}

// TestSlowMaster: a lookup does not wait for answers that take long, and has them when
// they are there.
func TestSlowMaster(t *testing.T) {
	c := startCluster(t)
	link, address := startSlowLink(t, c.master.Config.MasterServerAddress)
	a, b := c.node(nil), startFarNode(t, c.python, writeClusterBy(t, c.master, address), nil)
	blob := blobOf(1, 40)
	put(t, a.chunks, blob)
	a.awaitPuts(40)
	link.delay.Store(int64(300 * time.Millisecond))
	begun, slowest := time.Now(), time.Duration(0)
	until(t, "the hit", func() bool {
		asked := time.Now()
		tokens := hit(t, b.lookup, blob)
		slowest = max(slowest, time.Since(asked))
		return tokens == 640
	})
	t.Logf("with 0.6 s to the master and back, a lookup took %s at most, and the hit was there after %s", slowest.Round(time.Millisecond), time.Since(begun).Round(time.Millisecond))
	if whole, far := b.load(spec(), blob); whole != 40 || far == 0 {
		t.Errorf("%d chunks were loaded, %d of them from the cluster", whole, far)
	}
	t.Logf("all of it was loaded after %s", time.Since(begun).Round(time.Millisecond))
	link.delay.Store(0)
	sharedBy(t, a, b, 2)
}
