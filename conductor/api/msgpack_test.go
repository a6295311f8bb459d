package api

import (
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

func pack(t testing.TB, v any) string {
	t.Helper()
	packed, err := msgpack.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(packed)
}

// unpack reads an answer as a client in Python does.
func unpack(t testing.TB, body []byte) map[string]any {
	t.Helper()
	d := msgpack.NewDecoder(strings.NewReader(string(body)))
	d.UseLooseInterfaceDecoding(true)
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%x: %v", body, err)
	}
	return v
}

func TestMsgpackRegister(t *testing.T) {
	profile := map[string]any{"strategy": "vllm_v1", "algorithm": "sha256_cbor", "python_hash_seed": "0", "index_projection": "low64_be"}
	body := map[string]any{
		"endpoint": "tcp://127.0.0.1:5557", "type": "vLLM", "modelname": "test-model", "instance_id": "engine-a", "block_size": 16, "dp_rank": 0, "hash_profile": profile, "cache_group": nil,
	}
	index := &fakeIndex{}
	h := serve(index, nil)
	w := ask(t, h, "/register", pack(t, body), "Content-Type", msgpackType)
	if got := unpack(t, w.Body.Bytes()); w.Code != http.StatusOK || w.Header().Get("Content-Type") != msgpackType ||
		!reflect.DeepEqual(got, map[string]any{"status": "registered successfully", "instance_id": "engine-a"}) {
		t.Errorf("%d %v", w.Code, got)
	}
	if got := index.services[0]; got.Hash != (contract.HashProfile{Algorithm: "sha256_cbor", Seed: "0"}) || got.BlockTokens != 16 || got.Tenant != "default" {
		t.Errorf("registered %+v", got)
	}
	body["endpoint"] = "tcp://127.0.0.1:6000"
	w = ask(t, h, "/register", pack(t, body), "Content-Type", msgpackType)
	if got := unpack(t, w.Body.Bytes()); w.Code != http.StatusBadRequest || got["reason"] != "invalid_registration" {
		t.Errorf("a conflict: %d %v", w.Code, got)
	}
	profile["root_digest"] = "x"
	w = ask(t, h, "/register", pack(t, body), "Content-Type", msgpackType)
	if got := unpack(t, w.Body.Bytes()); w.Code != http.StatusBadRequest || got["reason"] != "unknown_field" || got["field"] != "hash_profile.root_digest" {
		t.Errorf("an unknown field: %d %v", w.Code, got)
	}
	w = ask(t, h, "/unregister", pack(t, map[string]any{"instance_id": "engine-a", "dp_rank": 0}), "Content-Type", msgpackType)
	if got := unpack(t, w.Body.Bytes()); w.Code != http.StatusOK || !reflect.DeepEqual(got["removed_instances"], []any{"engine-a|default|0"}) {
		t.Errorf("%d %v", w.Code, got)
	}
	w = ask(t, h, "/unregister", pack(t, map[string]any{"instance_id": "engine-a", "dp_rank": 0}), "Content-Type", msgpackType)
	if got := unpack(t, w.Body.Bytes()); w.Code != http.StatusNotFound || got["error"] == "" {
		t.Errorf("%d %v", w.Code, got)
	}
}

// The example of the C++ variant's documentation: two instances beside a store.
func TestMsgpackQuery(t *testing.T) {
	foreign := match("3", 0, [3]int{}, [3]int{})
	foreign.Foreign = true
	index := &fakeIndex{matches: map[string][]contract.RankMatch{"default": {
		match("1", prefixindex.Shared, [3]int{0, 48, 48}, [3]int{0, 48, 48}), match("1", 0, [3]int{32, 0, 0}, [3]int{32, 48, 48}),
		match("2", 1, [3]int{0, 0, 0}, [3]int{0, 48, 48}), foreign, match("store", prefixindex.Shared, [3]int{0, 48, 0}, [3]int{0, 48, 48}),
	}}}
	h := serve(index, nil)
	row := func(gpu int64, rank string) map[string]any {
		return map[string]any{
			"longest_matched": int64(48), "gpu": gpu, "cpu": int64(48), "disk": int64(48), "dp": map[string]any{rank: gpu},
			"rank_matches": map[string]any{rank: map[string]any{"gpu": gpu, "cpu": int64(48), "disk": int64(48)}}, "complete": true, "state": "complete",
		}
	}
	want := map[string]any{"instances": map[string]any{"1": row(32, "0"), "2": row(0, "1")}}
	wide := make([]uint32, 70000)
	for i := range wide {
		wide[i] = uint32(i)
	}
	for name, tokens := range map[string]any{"bytes": tokensOf(wide...), "numbers": wide, "none": []uint32{}, "one": []int64{-1}} {
		w := ask(t, h, "/query", pack(t, map[string]any{"model": "test-model", "block_size": 16, "token_ids": tokens, "cache_salt": nil}), "Content-Type", msgpackType)
		if got := unpack(t, w.Body.Bytes()); w.Code != http.StatusOK || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %d %v, want %v", name, w.Code, got, want)
		}
		asked := index.last().Tokens
		switch name {
		case "none":
			if len(asked) != 0 {
				t.Errorf("asked %d bytes", len(asked))
			}
		case "one":
			if string(asked) != "\xff\xff\xff\xff" {
				t.Errorf("asked %x", asked)
			}
		default:
			if string(asked) != string(tokensOf(wide...)) {
				t.Errorf("%s: asked %d bytes", name, len(asked))
			}
		}
	}
	w := ask(t, h, "/query", pack(t, map[string]any{"model": "m", "block_size": 16, "token_ids": []int{}, "instance_id": "nobody"}), "Content-Type", msgpackType)
	if got := unpack(t, w.Body.Bytes()); !reflect.DeepEqual(got, map[string]any{"instances": map[string]any{}}) {
		t.Errorf("%v", got)
	}
}

func TestMsgpackErrors(t *testing.T) {
	h := serve(&fakeIndex{}, nil)
	full := func(change map[string]any) string {
		body := map[string]any{"model": "m", "block_size": 16, "token_ids": []int{1}}
		for k, v := range change {
			body[k] = v
		}
		return pack(t, body)
	}
	deep := strings.Repeat("\x91", 1000)
	for name, c := range map[string]struct{ body, reason, field string }{
		"unknown field":      {full(map[string]any{"hash": 1}), "unknown_field", "hash"},
		"a name in capitals": {full(map[string]any{"MODEL": "m"}), "unknown_field", "MODEL"},
		"bytes of a token":   {full(map[string]any{"token_ids": []byte{1, 2, 3}}), "out_of_range", "token_ids"},
		"a text in a list":   {full(map[string]any{"token_ids": []any{1, "2"}}), "invalid_type", "token_ids"},
		"a number too large": {full(map[string]any{"token_ids": []any{1 << 33}}), "out_of_range", "token_ids"},
		"a fraction":         {full(map[string]any{"block_size": 16.5}), "invalid_type", "block_size"},
		"a block size of 0":  {full(map[string]any{"block_size": 0}), "out_of_range", "block_size"},
		"no map":             {pack(t, []int{1}), "invalid_type", ""},
		"no msgpack":         {"\xc1", "invalid_msgpack", ""},
		"cut":                {full(nil)[:10], "invalid_msgpack", ""},
		"more":               {full(nil) + "\x00", "invalid_msgpack", ""},
		"a made-up length":   {"\x81\xa5model\xdb\xff\xff\xff\xff", "invalid_msgpack", ""},
		"a made-up list":     {"\x81\xa9token_ids\xdd\xff\xff\xff\xff", "invalid_msgpack", ""},
		"nested":             {"\x81\xa5model" + deep, "invalid_msgpack", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := ask(t, h, "/query", c.body, "Content-Type", msgpackType)
			got := unpack(t, w.Body.Bytes())
			field, _ := got["field"].(string)
			if w.Code != http.StatusBadRequest || got["reason"] != c.reason || field != c.field {
				t.Errorf("%d %v", w.Code, got)
			}
		})
	}
	w := ask(t, h, "/query", full(map[string]any{"token_ids": []any{1, "2"}}), "Content-Type", msgpackType)
	if got := unpack(t, w.Body.Bytes()); !reflect.DeepEqual(got["index"], int64(1)) {
		t.Errorf("%v", got)
	}
}

// A name that is no text is a fault of its own query alone.
func TestUnnamedField(t *testing.T) {
	good := map[string]any{"model": "m", "token_ids": []int{1}}
	h := serve(&fakeIndex{}, nil)
	w := ask(t, h, "/query_batch", pack(t, map[string]any{"queries": []any{good, map[any]any{1: []any{"x", 2}, "model": "m"}, good}}), "Content-Type", msgpackType)
	results, _ := unpack(t, w.Body.Bytes())["results"].([]any)
	if w.Code != http.StatusOK || len(results) != 3 {
		t.Fatalf("%d %q", w.Code, w.Body)
	}
	for i, key := range []string{"instances", "error", "instances"} {
		if one, ok := results[i].(map[string]any); !ok || one[key] == nil {
			t.Errorf("%d: %v", i, results[i])
		}
	}
	if w := ask(t, h, "/query", pack(t, map[any]any{1: "x"}), "Content-Type", msgpackType); w.Code != http.StatusBadRequest {
		t.Errorf("%d %q", w.Code, w.Body)
	}
}
