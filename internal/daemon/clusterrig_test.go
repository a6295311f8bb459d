package daemon

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
)

// lentBytes is what a storage node of the tests lends.
const lentBytes = 256 << 20

// storeCluster is a Mooncake cluster of a test's own.
type storeCluster struct {
	t      *testing.T
	python string
	master *mooncaketest.Master
	peer   *mooncaketest.Peer // the first storage node
	file   string             // that says how the master is reached
}

// startCluster starts a master with a storage node. It skips the test where there is
// no Mooncake.
func startCluster(t *testing.T, flags ...string) *storeCluster {
	t.Helper()
	return startClusterOf(t, lentBytes, flags...)
}

// startClusterOf is startCluster with a storage node that lends so much.
func startClusterOf(t *testing.T, lent uint64, flags ...string) *storeCluster {
	t.Helper()
	c := &storeCluster{t: t, python: mooncaketest.Python(t)}
	onLoopback(t)
	c.master = mooncaketest.StartMaster(t, c.python, flags...)
	c.peer = c.lend(lent)
	c.file = writeCluster(t, c.master)
	return c
}

// lend starts a storage node.
func (c *storeCluster) lend(bytes uint64) *mooncaketest.Peer {
	c.t.Helper()
	return mooncaketest.StartPeer(c.t, c.python, c.master, bytes)
}

// node starts a node over the cluster.
func (c *storeCluster) node(adjust func(*config.LookupdConfig)) *farNode {
	c.t.Helper()
	return startFarNode(c.t, c.python, c.file, adjust)
}

// writeCluster writes the file that says how a master is reached.
func writeCluster(t *testing.T, master *mooncaketest.Master) string {
	t.Helper()
	return writeClusterBy(t, master, master.Config.MasterServerAddress)
}

// writeClusterBy is writeCluster for who reaches the master at another address.
func writeClusterBy(t *testing.T, master *mooncaketest.Master, address string) string {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"metadata_server": master.Config.MetadataServer, "master_server_address": address,
		"protocol": "tcp", "mode": "standalone-store", "global_segment_size": 0,
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "mooncake.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// onLoopback keeps Mooncake's clients of this test there.
func onLoopback(t *testing.T) {
	for name, value := range map[string]string{"MC_TCP_BIND_ADDRESS": "127.0.0.1", "MC_LOG_LEVEL": "ERROR", "MOONCAKE_REQUESTER_LOCAL_HOSTNAME": "127.0.0.1"} {
		t.Setenv(name, value)
	}
}
