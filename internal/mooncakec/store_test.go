//go:build cgo && linux && (amd64 || arm64)

package mooncakec_test

import (
	"testing"

	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
)

// TestStore is the behaviour of every store, over the library.
func TestStore(t *testing.T) {
	r := start(t, double(t), "strict=1 lease_ms=5000", nil)
	r.ready()
	mooncaketest.TestStore(t, mooncaketest.Rig{Engine: r, Memory: r.memory})
}
