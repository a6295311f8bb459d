package sideproc_test

import (
	"testing"

	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/sideproc"
)

// TestStore is the behaviour of every store, on a real master.
func TestStore(t *testing.T) {
	t.Parallel()
	python := mooncaketest.Python(t)
	master := mooncaketest.StartMaster(t, python)
	mooncaketest.StartPeer(t, python, master, lent)
	memory := newMemory(t, 4<<20)
	e := run(t, sideproc.Config{Python: python, Cluster: master.Config, Memory: memory})
	await(t, e, isReady)
	mooncaketest.TestStore(t, mooncaketest.Rig{Engine: e, Memory: memory.Bytes()})
}
