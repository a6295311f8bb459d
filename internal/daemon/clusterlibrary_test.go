package daemon

import (
	"cmp"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/cluster"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
)

// doubleLibrary builds the test double of Mooncake's C library. Its clients share
// objects by the master's address; the metadata server's address has its options.
func doubleLibrary(t *testing.T, defines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "libmooncake_store.so")
	arguments := append([]string{"-O1", "-pthread", "-shared", "-fPIC", "-o", path, "../mooncakec/testdata/double.c"}, defines...)
	if said, err := exec.Command(cmp.Or(os.Getenv("CC"), "gcc"), arguments...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	return path
}

// listener is an address that answers.
func listener(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

func doubleCluster(t *testing.T, options string) string {
	t.Helper()
	t.Setenv("MOONCAKE_REQUESTER_LOCAL_HOSTNAME", "127.0.0.1")
	return writeCluster(t, &mooncaketest.Master{Config: cluster.Config{MetadataServer: options, MasterServerAddress: listener(t)}})
}

// TestTwoNodesByTheLibrary: the nodes reach their cluster without Python.
func TestTwoNodesByTheLibrary(t *testing.T) {
	library := doubleLibrary(t)
	overACluster(t, doubleCluster(t, "strict=1 lease_ms=5000"), func(cfg *config.LookupdConfig) { cfg.StorePython, cfg.Library = "/nonexistent", library })
}

// mappings counts this process's mappings of stores.
func mappings(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "/memfd:mooncake-store")
}

// TestLibraryThatDoesNotEnd: the daemon ends though the library does not, and leaves
// it the memory that it may touch; otherwise the memory goes.
func TestLibraryThatDoesNotEnd(t *testing.T) {
	library := doubleLibrary(t)
	for name, stuck := range map[string]bool{"ends": false, "is stuck": true} {
		t.Run(name, func(t *testing.T) {
			stop := filepath.Join(t.TempDir(), "stop")
			n := startFarNode(t, "", doubleCluster(t, "stop="+stop), func(cfg *config.LookupdConfig) { cfg.Library = library })
			n.chunks.Close() // which has a mapping of its own
			before := mappings(t)
			if stuck {
				if err := os.WriteFile(stop, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			n.run.end()
			if stuck {
				defer func() { _ = os.Remove(stop) }() // or its thread would stay
			}
			if gone := before - mappings(t); (gone == 0) != stuck {
				t.Errorf("%d mappings of the store have gone", gone)
			}
		})
	}
}

// TestProbeByTheLibrary: doctor says what reaches the cluster, or why it can't.
func TestProbeByTheLibrary(t *testing.T) {
	library, file := doubleLibrary(t), doubleCluster(t, "strict=1")
	way := config.Mooncake{StorePython: "/nonexistent", Library: library, ConfigPath: file}
	found := ProbeCluster(t.Context(), &way)
	if !found.Ready || found.Library != library || found.Versions["library"] != library || found.Versions["pins"] != "flags" {
		t.Errorf("%+v", found)
	}
	for why, bad := range map[string]string{
		"/nonexistent/libmooncake_store.so": "/nonexistent/libmooncake_store.so", "mooncake_store_remove": doubleLibrary(t, "-DWITHOUT_REMOVE"),
	} {
		way.Library = bad
		if found := ProbeCluster(t.Context(), &way); found.Ready || !strings.Contains(found.Reason, why) {
			t.Errorf("%s: %+v", why, found)
		}
	}
	way.Library = ""
	if found := ProbeCluster(t.Context(), &way); found.Ready || !strings.Contains(found.Reason, "store_python") {
		t.Errorf("%+v", found)
	}
}
