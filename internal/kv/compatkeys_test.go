package kv

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// TestGoldenKeys: the keys of every shard are those of the in-tree connector's
// worker, byte for byte. testdata/golden/keys/generate.py drives that one.
func TestGoldenKeys(t *testing.T) {
	text, err := os.ReadFile("../../testdata/golden/keys/keys.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Namespace NamespaceSpec
		Hash      []byte
		// Keys are of the hash, by group and shard.
		Keys [][]string
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	shared, stages, windows := 0, 0, 0
	for i, c := range cases {
		if err := c.Namespace.Validate(); err != nil {
			t.Fatalf("case %d: %v", i, err)
		}
		if len(c.Keys) != len(c.Namespace.Groups) {
			t.Fatalf("case %d: keys of %d groups, want %d", i, len(c.Keys), len(c.Namespace.Groups))
		}
		for g, want := range c.Keys {
			if len(want) != c.Namespace.Groups[g].Shards {
				t.Fatalf("case %d: %d keys of %d shards", i, len(want), c.Namespace.Groups[g].Shards)
			}
			for shard := range want {
				if got := PoolKey(c.Namespace.KeyPrefix(g, shard), c.Hash); got != want[shard] {
					t.Errorf("case %d: group %d, shard %d: %q, in-tree %q", i, g, shard, got, want[shard])
				}
			}
		}
		if strings.Contains(c.Namespace.KeySpace, "@store_tp:") {
			shared++
		}
		if c.Namespace.PP > 1 {
			stages++
		}
		if len(c.Keys) > 1 {
			windows++
		}
	}
	if len(cases) < 100 || shared < 10 || stages < 10 || windows < 10 {
		t.Errorf("%d cases, %d with shared shards, %d with stages, %d with several groups: too few", len(cases), shared, stages, windows)
	}
}

func compatSpec() *NamespaceSpec {
	return &NamespaceSpec{
		Model: "m", Dtype: "bfloat16", Layout: "LBHNC/rank_local", HashAlgorithm: "sha256", HashBytes: 32, HashBlockTokens: 16,
		SchedulerBlockTokens: 16, RetentionTokens: -1, TP: 2, PP: 1, PCP: 1, DCP: 1, KeySpace: "m",
		Groups: []GroupSpec{{Kind: FullAttention, BlockTokens: 16, Identity: "i", ShardBytes: 512, Shards: 2}},
	}
}

func TestKeyConflict(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*NamespaceSpec)
		want   string
	}{
		"equal":               {func(*NamespaceSpec) {}, ""},
		"dtype":               {func(s *NamespaceSpec) { s.Dtype = "float16" }, "dtype is float16 here and bfloat16 there"},
		"layout":              {func(s *NamespaceSpec) { s.Layout = "LBNHC/rank_local" }, "layout is"},
		"tp":                  {func(s *NamespaceSpec) { s.TP, s.Groups[0].Shards = 4, 4 }, "tp is 4 here and 2 there"},
		"shards":              {func(s *NamespaceSpec) { s.Groups[0].Shards = 4 }, "group 0's shards is 4"},
		"blocks":              {func(s *NamespaceSpec) { s.Groups[0].BlockTokens = 32 }, "group 0's block_tokens is 32"},
		"heads":               {func(s *NamespaceSpec) { s.Groups[0].Identity = "j" }, "group 0's spec is j"},
		"groups":              {func(s *NamespaceSpec) { s.Groups = append(s.Groups, s.Groups[0]) }, "2 KV-cache groups here and 1 there"},
		"two that read a@b@c": {func(s *NamespaceSpec) { s.Model, s.CachePrefix = "b@m", "a" }, "model is b@m here and m there"},
		"prefix":              {func(s *NamespaceSpec) { s.CachePrefix = "a" }, `cache_prefix is "a" here and "" there`},
		"another space":       {func(s *NamespaceSpec) { s.KeySpace, s.Dtype = "tenant@m", "float16" }, ""},
		"no keys":             {func(s *NamespaceSpec) { s.KeySpace, s.Dtype = "", "float16" }, ""},
		"other hashes":        {func(s *NamespaceSpec) { s.HashAlgorithm, s.Dtype = "sha256_cbor", "float16" }, ""},
		"retention":           {func(s *NamespaceSpec) { s.RetentionTokens, s.UseEagle = 64, true }, ""},
	} {
		s := compatSpec()
		test.change(s)
		if got := s.KeyConflict(compatSpec()); (got == "") != (test.want == "") || !strings.HasPrefix(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

func TestKeySpaceIsValidated(t *testing.T) {
	for name, change := range map[string]func(*NamespaceSpec){
		"path":          func(s *NamespaceSpec) { s.Model = "a/m" },
		"revision":      func(s *NamespaceSpec) { s.Revision = "r" },
		"fingerprint":   func(s *NamespaceSpec) { s.Fingerprint = "f" },
		"stages":        func(s *NamespaceSpec) { s.PP = 3 },
		"both contexts": func(s *NamespaceSpec) { s.PCP, s.DCP = 2, 2 },
		"too long":      func(s *NamespaceSpec) { s.KeySpace = strings.Repeat("x", maxTextBytes+1) },
	} {
		s := compatSpec()
		if err := s.Validate(); err != nil {
			t.Fatal(err)
		}
		change(s)
		if err := s.Validate(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	plain, keyed := compatSpec(), compatSpec()
	plain.KeySpace = ""
	if plain.Digest() == keyed.Digest() {
		t.Error("engines with and without in-tree keys share a namespace")
	}
}
