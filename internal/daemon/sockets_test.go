package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/zmqx"
	"github.com/mooncake-sidecar/sidecar/lookupd"
)

// An engine asks for another path when it hears that this one is taken, be it by a
// file that somebody has put there.
func TestLookupPathsThatAreTaken(t *testing.T) {
	transport, err := zmqx.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := transport.Close(); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(t.TempDir(), "lookup")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := lookupSockets(transport)(path, nil); !errors.Is(err, lookupd.ErrPathTaken) {
		t.Errorf("a file is there: %v", err)
	}
	if _, err := lookupSockets(transport)("relative", nil); !errors.Is(err, lookupd.ErrBadPath) {
		t.Errorf("a relative path: %v", err)
	}
}
