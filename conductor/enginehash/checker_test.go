package enginehash

import (
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// stored is what an engine of a profile publishes of a prompt.
func stored(t *testing.T, profile contract.HashProfile, salt string, tokens ...uint32) *kvevents.BlockStored {
	t.Helper()
	h, err := New(profile)
	if err != nil {
		t.Fatal(err)
	}
	hashes, err := h.Prompt(tokens, 2, salt)
	if err != nil {
		t.Fatal(err)
	}
	e := &kvevents.BlockStored{Hashes: hashes, TokenIDs: tokens, BlockSize: 2}
	if salt != "" {
		e.HasExtraKeys = true
		e.ExtraKeys = append([]byte{0x92, 0x91, 0xa0 | byte(len(salt))}, salt+"\xc0"...) // [[salt], nil]
	}
	return e
}

func TestChecker(t *testing.T) {
	sha, cbor0, xx := contract.HashProfile{Algorithm: SHA256}, contract.HashProfile{Algorithm: SHA256CBOR, Seed: "0"}, contract.HashProfile{Algorithm: XXHash, Seed: "17"}
	for _, c := range []struct {
		name             string
		declared, engine contract.HashProfile
		hashing, fault   string
	}{
		{"as declared", sha, sha, "sha256, seed unset", ""},
		{"nothing declared", contract.HashProfile{}, cbor0, "sha256_cbor, seed 0", ""},
		{"a seed declared", contract.HashProfile{Seed: "17"}, xx, "xxhash, seed 17", ""},
		{"another seed", contract.HashProfile{Seed: "17"}, sha, "sha256, seed unset", "not any algorithm, seed 17"},
		{"another algorithm", cbor0, sha, "sha256, seed unset", "not sha256_cbor, seed 0"},
		{"seed forgotten", contract.HashProfile{Algorithm: SHA256, Seed: "17"}, sha, "sha256, seed unset", "not sha256, seed 17"},
		{"a seed that nobody knows", sha, contract.HashProfile{Algorithm: SHA256, Seed: "12345"}, Unknown, "not those of sha256, seed unset"},
		{"unknown", contract.HashProfile{}, contract.HashProfile{Algorithm: SHA256, Seed: "12345"}, Unknown, ""},
		{"random", contract.HashProfile{Algorithm: XXHash, Seed: RandomSeed}, xx, Unknown, ""},
	} {
		for _, salt := range []string{"", "t1"} {
			checker := NewChecker(c.declared)
			if checker.Hashing() != "" || checker.Fault() != "" {
				t.Errorf("%s: a verdict without having looked", c.name)
			}
			for i := range uint32(2 * enough) {
				checker.Look(stored(t, c.engine, salt, i, 2, 3, 4))
			}
			if got := checker.Fault(); checker.Hashing() != c.hashing || c.fault == "" && got != "" || !strings.Contains(got, c.fault) {
				t.Errorf("%s, salt %q: %q, %q", c.name, salt, checker.Hashing(), got)
			}
			checker.Reset()
			checker.Look(stored(t, sha, salt, 1, 2))
			if checker.Hashing() != "sha256, seed unset" {
				t.Errorf("%s, another engine: %q", c.name, checker.Hashing())
			}
		}
	}
}

// What has more in its hash than the events tell is nobody's fault.
func TestCheckerLeavesOutWhatItCantKnow(t *testing.T) {
	id := int64(1)
	for name, change := range map[string]func(*kvevents.BlockStored){
		"an adapter":         func(e *kvevents.BlockStored) { e.LoraID, e.LoraName = &id, "a" },
		"an image":           func(e *kvevents.BlockStored) { e.HasExtraKeys, e.ExtraKeys = true, []byte("\x92\x91\x92\xa1i\x00\xc0") },
		"a salt and more":    func(e *kvevents.BlockStored) { e.HasExtraKeys, e.ExtraKeys = true, []byte("\x92\x92\xa1s\xa1m\xc0") },
		"keys that are none": func(e *kvevents.BlockStored) { e.HasExtraKeys, e.ExtraKeys = true, []byte("\x07") },
		"what goes on":       func(e *kvevents.BlockStored) { e.Parent = &e.Hashes[0] },
		"no tokens":          func(e *kvevents.BlockStored) { e.TokenIDs, e.BlockSize = nil, 0 },
		"blocks left out":    func(e *kvevents.BlockStored) { e.Hashes = e.Hashes[:1] },
		"no blocks":          func(e *kvevents.BlockStored) { e.Hashes, e.TokenIDs = nil, nil },
		"a huge block": func(e *kvevents.BlockStored) {
			e.BlockSize, e.TokenIDs = MaxBlockTokens+1, make([]uint32, 2*MaxBlockTokens+2)
		},
	} {
		e := stored(t, contract.HashProfile{Algorithm: SHA256, Seed: "another"}, "", 1, 2, 3, 4)
		change(e)
		checker := NewChecker(contract.HashProfile{Algorithm: SHA256})
		checker.Look(e)
		if checker.Fault() != "" {
			t.Errorf("%s: %s", name, checker.Fault())
		}
	}
}
