package mooncaketest

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/storetest"
)

// TestStore is the behaviour of every store, over an engine: with our keys, and with
// the in-tree connector's.
func TestStore(t *testing.T, rig Rig) {
	var stores atomic.Int64
	for name, inTree := range map[string]bool{"our keys": false, "in-tree keys": true} {
		t.Run(name, func(t *testing.T) {
			storetest.TestStore(t, func(t *testing.T) store.Store {
				// Every store begins empty: its keys are its own.
				prefix := fmt.Sprintf("store-%d@", stores.Add(1))
				s, err := mooncake.New(mooncake.Options{Staging: mooncake.Range{Bytes: uint64(len(rig.Memory))}, ClientOptions: mooncake.ClientOptions{
					Engine: rig.Engine, Memory: rig.Memory, Log: slog.New(slog.DiscardHandler),
					Keys: func(spec *kv.NamespaceSpec) (mooncake.Keyspace, error) {
						mine := *spec
						mine.CachePrefix = prefix
						if inTree {
							mine.KeySpace = prefix + spec.Model
						}
						return mooncake.NamespaceKeys(&mine)
					},
				}})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					s.Close()
					if stats := s.Stats(); stats.StagingFree != stats.StagingBytes {
						t.Errorf("%d bytes of staging are not free", stats.StagingBytes-stats.StagingFree)
					}
				})
				return s
			})
		})
	}
}
