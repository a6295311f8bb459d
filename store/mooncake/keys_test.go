package mooncake_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/storetest"
)

// spaceOf returns a namespace's keys.
func spaceOf(t *testing.T, spec *kv.NamespaceSpec) mooncake.Keyspace {
	t.Helper()
	space, err := mooncake.NamespaceKeys(spec)
	if err != nil {
		t.Fatal(err)
	}
	return space
}

// TestInTreeKeys: with a key space the keys are those that vLLM's in-tree connector
// makes, of engines at random; the golden file is from its code.
func TestInTreeKeys(t *testing.T) {
	golden, err := os.ReadFile("../../testdata/golden/keys/keys.json")
	if err != nil {
		t.Fatal(err)
	}
	var engines []struct {
		Namespace kv.NamespaceSpec
		Hash      []byte
		Keys      [][]string
	}
	if err := json.Unmarshal(golden, &engines); err != nil {
		t.Fatal(err)
	}
	if len(engines) < 10 {
		t.Fatalf("%d engines", len(engines))
	}
	for i := range engines {
		e := &engines[i]
		space := spaceOf(t, &e.Namespace)
		for group, keys := range e.Keys {
			for shard, want := range keys {
				if got := kv.PoolKey(space.Prefixes[group][shard], e.Hash); got != want {
					t.Errorf("engine %d group %d shard %d: %q, in-tree %q", i, group, shard, got, want)
				}
				if !strings.HasPrefix(want, space.Scope) {
					t.Errorf("engine %d: key %q is not in the scope %q", i, want, space.Scope)
				}
			}
		}
	}
}

// TestOwnKeys: a scope holds the keys of its namespace, and none of another.
func TestOwnKeys(t *testing.T) {
	a, b := storetest.Spec("m", 2), storetest.Spec("m", 2)
	b.Fingerprint = "other weights"
	one, other := spaceOf(t, a), spaceOf(t, b)
	seen := map[string]bool{}
	for _, prefix := range one.Prefixes[0] {
		if !strings.HasPrefix(prefix, one.Scope) || strings.HasPrefix(prefix, other.Scope) || seen[prefix] {
			t.Errorf("key %q, scopes %q and %q", prefix, one.Scope, other.Scope)
		}
		seen[prefix] = true
	}
}

func TestKeysThatAreNone(t *testing.T) {
	for name, space := range map[string]string{"a long key space": strings.Repeat("p", 2000), "a zero byte": "a\x00b"} {
		spec := storetest.Spec("m", 2)
		spec.KeySpace = space
		if _, err := mooncake.NamespaceKeys(spec); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestCodes(t *testing.T) {
	for code, want := range map[mooncake.Code]string{
		mooncake.CodeNoSpace: "NO_AVAILABLE_HANDLE (-200)", mooncake.CodeLeaseExpired: "LEASE_EXPIRED (-707)", -4242: "Mooncake code -4242", 0: "OK (0)",
	} {
		if got := code.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if code := mooncake.Answer(-1 << 60).Code(); code >= 0 {
		t.Errorf("an answer below all codes is %s", code)
	}
}
