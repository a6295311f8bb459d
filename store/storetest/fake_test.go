package storetest

import (
	"testing"

	"github.com/mooncake-sidecar/sidecar/store"
)

func TestFakeStore(t *testing.T) {
	TestStore(t, func(*testing.T) store.Store { return NewFakeStore(1 << 20) })
}
