package mooncaketest_test

import (
	"testing"

	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
)

func TestFake(t *testing.T) {
	memory := make([]byte, 2<<20)
	cluster := mooncaketest.NewCluster(0)
	cluster.GiveLeases()
	mooncaketest.TestEngine(t, mooncaketest.Rig{Engine: cluster.NewEngine(memory), Memory: memory})
}
