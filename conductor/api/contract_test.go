package api

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// documented is the example of /register in Mooncake Conductor's documentation.
const documented = `{"endpoint": "tcp://1.1.1.1:5557", "replay_endpoint": "tcp://1.1.1.1:5558", "type": "vLLM", "modelname": "deepseek",
  "lora_name": "sql-adapter", "tenant_id": "default", "instance_id": "vllm-prefill-node1", "block_size": 128, "dp_rank": 0, "additionalsalt": "w8a8"}`

func TestRegisterAsDocumented(t *testing.T) {
	index := &fakeIndex{}
	h := serve(index, nil)
	w := ask(t, h, "/register", documented)
	if w.Code != http.StatusOK || w.Body.String() != `{"status":"registered successfully","instance_id":"vllm-prefill-node1"}`+"\n" || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	want := contract.Service{
		Endpoint: "tcp://1.1.1.1:5557", ReplayEndpoint: "tcp://1.1.1.1:5558", Type: "vLLM", Model: "deepseek", LoRA: "sql-adapter", Tenant: "default",
		Instance: "vllm-prefill-node1", BlockTokens: 128, AdditionalSalt: "w8a8",
	}
	if got := index.Services()[0].Service; got != want {
		t.Errorf("registered %+v", got)
	}
	if w := ask(t, h, "/register", documented); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"existed":true`) || len(index.Services()) != 1 {
		t.Errorf("the same again: %d %s", w.Code, w.Body)
	}
	if w := ask(t, h, "/register", strings.Replace(documented, ":5557", ":6000", 1)); w.Code != http.StatusConflict || len(index.Services()) != 1 {
		t.Errorf("another of its key: %d %s", w.Code, w.Body)
	}
	// The address that the contract's documentation has for its removal.
	w = ask(t, h, "/unregister", `{"type":"vLLM","modelname":"deepseek","lora_name":"sql-adapter","tenant_id":"default","instance_id":"vllm-prefill-node1","block_size":128,"dp_rank":0}`)
	if w.Code != http.StatusOK || w.Body.String() != `{"status":"unregistered successfully","removed_instances":["vllm-prefill-node1|default|0"]}`+"\n" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	w = ask(t, h, "/unregister", `{"instance_id":"vllm-prefill-node1","dp_rank":0}`)
	if w.Code != http.StatusNotFound || w.Body.String() != "service not found: vllm-prefill-node1|default|0\n" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestRegisterDefaults(t *testing.T) {
	for _, body := range []string{
		`{"endpoint":"tcp://e:1","modelname":"m","instance_id":"i","block_size":16}`,
		`{"endpoint":"tcp://e:1","modelname":"m","instance_id":"i","block_size":16,"tenant_id":null,"lora_name":null,"additionalsalt":null,"dp_rank":0,"type":"vllm"}`,
		`{"Endpoint":"tcp://e:1","MODELNAME":"m","instance_id":"i","block_size":16,"tenant_id":"","whatever":[1,{"a":"}"}]}`,
	} {
		index := &fakeIndex{}
		w := ask(t, serve(index, nil), "/register", body)
		want := contract.Service{Endpoint: "tcp://e:1", Type: "vLLM", Model: "m", Tenant: "default", Instance: "i", BlockTokens: 16}
		if w.Code != http.StatusOK || len(index.services) != 1 || index.services[0].Service != want {
			t.Errorf("%s: %d %s: %+v", body, w.Code, w.Body, index.services)
		}
	}
}

func TestRegisterRefuses(t *testing.T) {
	base := map[string]any{"endpoint": "tcp://e:1", "modelname": "m", "instance_id": "i", "block_size": 16, "dp_rank": 0}
	for name, c := range map[string]struct {
		field         string
		value         any
		reason, wrong string // of the error, and its field
	}{
		"no endpoint":            {"endpoint", nil, "missing", "endpoint"},
		"no model":               {"modelname", "", "missing", "modelname"},
		"no instance":            {"instance_id", nil, "missing", "instance_id"},
		"block size 0":           {"block_size", 0, "out_of_range", "block_size"},
		"block size text":        {"block_size", "16", "invalid_type", "block_size"},
		"block size fraction":    {"block_size", 1.5, "out_of_range", "block_size"},
		"rank below zero":        {"dp_rank", -1, "out_of_range", "dp_rank"},
		"rank too large":         {"dp_rank", 1 << 20, "out_of_range", "dp_rank"},
		"unknown type":           {"type", "TGI", "invalid_value", "type"},
		"no scheme":              {"endpoint", "10.0.0.1:5557", "invalid_value", "endpoint"},
		"no port":                {"endpoint", "tcp://10.0.0.1", "invalid_value", "endpoint"},
		"an engine's own":        {"endpoint", "tcp://*:5557", "invalid_value", "endpoint"},
		"replay of any":          {"replay_endpoint", "tcp://0.0.0.0:5557", "invalid_value", "replay_endpoint"},
		"a bar in the name":      {"instance_id", "a|b", "invalid_value", "instance_id"},
		"a long name":            {"modelname", strings.Repeat("m", maxTextBytes+1), "out_of_range", "modelname"},
		"a list for a name":      {"modelname", []int{1}, "invalid_type", "modelname"},
		"an unknown algorithm":   {"hash_profile", map[string]any{"algorithm": "md5"}, "unsupported", "hash_profile.algorithm"},
		"a seed that is no text": {"hash_profile", map[string]any{"python_hash_seed": 0}, "invalid_type", "hash_profile.python_hash_seed"},
		"a seed with a sign":     {"hash_profile", map[string]any{"python_hash_seed": "+1"}, "unsupported", "hash_profile.python_hash_seed"},
		"a group":                {"cache_group", 1, "unsupported", "cache_group"},
		"an engine":              {"endpoint", nil, "missing", "endpoint"},
	} {
		t.Run(name, func(t *testing.T) {
			body := map[string]any{}
			for k, v := range base {
				body[k] = v
			}
			body[c.field] = c.value
			text, err := json.Marshal(body)
			if err != nil {
				t.Fatal(err)
			}
			index := &fakeIndex{}
			w := ask(t, serve(index, nil), "/register", string(text), "Accept", "application/json")
			var fault Fault
			if err := json.Unmarshal(w.Body.Bytes(), &fault); err != nil || w.Code != http.StatusBadRequest || fault.Reason != c.reason || fault.Field != c.wrong || fault.Error == "" {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if len(index.services) > 0 {
				t.Error("it was registered")
			}
		})
	}
}

// query is a query whose prompt is 1, 2, 3.
const query = `{"model":"deepseek","lora_name":"sql-adapter","token_ids":[1,2,3],"tenant_id":"default","block_size":64,"cache_salt":"w8a8"}`

func TestQueryAsDocumented(t *testing.T) {
	incomplete := match("b", 0, [3]int{64}, [3]int{64, 64, 64})
	incomplete.State, incomplete.Since = contract.Incomplete, 7
	foreign := match("c", 0, [3]int{}, [3]int{})
	foreign.Foreign = true
	index := &fakeIndex{matches: map[string][]contract.RankMatch{"default": {
		match("a", prefixindex.Shared, [3]int{0, 320, 0}, [3]int{0, 320, 320}),
		match("a", 0, [3]int{128, 64, 0}, [3]int{128, 192, 192}),
		match("a", 1, [3]int{64, 256, 0}, [3]int{64, 256, 256}),
		incomplete, foreign,
	}}}
	h := serve(index, nil)
	w := ask(t, h, "/query", query)
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	// As a client of the contract reads it.
	var got map[string]map[string]struct {
		Longest int            `json:"longest_matched"`
		DP      map[string]int `json:"DP"`
		GPU     int
		CPU     int
		DISK    int
		// What is ours.
		Complete bool   `json:"complete"`
		State    string `json:"state"`
		Since    uint64 `json:"complete_since"`
		Foreign  bool   `json:"foreign"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err, w.Body)
	}
	a, b, c := got["default"]["a"], got["default"]["b"], got["default"]["c"]
	if len(got) != 1 || len(got["default"]) != 3 || a.Longest != 320 || !reflect.DeepEqual(a.DP, map[string]int{"0": 192, "1": 256}) || a.GPU != 128 || a.CPU != 320 || a.DISK != 0 || !a.Complete || a.Foreign {
		t.Errorf("%s", w.Body)
	}
	if b.Complete || b.State != "incomplete" || b.Since != 7 || b.Longest != 64 || !c.Foreign || !c.Complete {
		t.Errorf("%s", w.Body)
	}
	q := index.last()
	if q.Model != "deepseek" || q.LoRA != "sql-adapter" || q.Tenant != "default" || q.Instance != "" || q.BlockTokens != 64 || q.CacheSalt != "w8a8" || q.HasAdditionalSalt || string(q.Tokens) != string(tokensOf(1, 2, 3)) || q.Hashes != nil {
		t.Errorf("asked %+v", q)
	}
}

// Rows that the contract has where nothing is known.
func TestQueryEmptyRows(t *testing.T) {
	index := &fakeIndex{matches: map[string][]contract.RankMatch{"default": {match("a", 0, [3]int{}, [3]int{})}}}
	h := serve(index, nil)
	for body, want := range map[string]string{
		`{"model":"m","token_ids":[],"block_size":16}`:                              `{"default":{"a":{"longest_matched":0,"DP":{"0":0},"GPU":0,"CPU":0,"DISK":0,"complete":true,"state":"complete","ranks":{"0":{"GPU":0,"CPU":0,"DISK":0,"through":{"GPU":0,"CPU":0,"DISK":0},"state":"complete"}}}}}`,
		`{"model":"m","token_ids":[1],"block_size":16,"tenant_id":"nobody"}`:        `{}`,
		`{"model":"m","token_ids":[1],"block_size":16,"instance_id":"nobody"}`:      `{"default":{"nobody":{"longest_matched":0,"DP":{},"GPU":0,"CPU":0,"DISK":0,"complete":false,"registered":false}}}`,
		`{"model":"m","token_ids":[1],"block_size":16,"instance_id":"q\"\n\u00e9"}`: `{"default":{"q\"\né":{"longest_matched":0,"DP":{},"GPU":0,"CPU":0,"DISK":0,"complete":false,"registered":false}}}`,
	} {
		if w := ask(t, h, "/query", body); w.Code != http.StatusOK || w.Body.String() != want+"\n" {
			t.Errorf("%s: %d\n%s, want\n%s", body, w.Code, w.Body, want)
		}
	}
}

func TestQueryByHash(t *testing.T) {
	index := &fakeIndex{}
	h := serve(index, nil)
	for body, want := range map[string][]uint64{
		`{"model":"m","seq_hashes":[1234567890,18446744073709551615],"block_size":64}`:                                           {1234567890, 1<<64 - 1},
		`{"model":"m","block_hash":[-1,5],"block_size":64}`:                                                                      {1<<64 - 1, 5},
		`{"model":"m","seq_hashes":["0x10","000000000000000000000000000000000000000000000000ffffffffffffff01"],"block_size":64}`: {16, 0xffffffffffffff01},
		`{"model":"m","seq_hashes":[],"block_size":64}`:                                                                          {},
	} {
		w := ask(t, h, "/query_by_hash", body)
		q := index.last()
		if w.Code != http.StatusOK || q.Hashes == nil || !reflect.DeepEqual(append(hashesOf(), q.Hashes...), append(hashesOf(), hashesOf(want...)...)) || q.Tokens != nil {
			t.Errorf("%s: %d %s, asked %v", body, w.Code, w.Body, q.Hashes)
		}
	}
	for body, field := range map[string]string{
		`{"model":"m","token_ids":[1],"block_size":64}`: "seq_hashes", `{"model":"m","seq_hashes":[1.5],"block_size":64}`: "seq_hashes",
		`{"model":"m","seq_hashes":["xyz"],"block_size":64}`: "seq_hashes", `{"model":"m","seq_hashes":[18446744073709551616],"block_size":64}`: "seq_hashes",
		`{"model":"m","seq_hashes":[1,null],"block_size":64}`: "seq_hashes", `{"seq_hashes":[1],"block_size":64}`: "model",
	} {
		if w := ask(t, h, "/query_by_hash", body); w.Code != http.StatusBadRequest || !strings.HasPrefix(w.Body.String(), field+": ") {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	}
}

// Errors are lines of text, as the contract's are, and JSON for who asks for it.
func TestErrors(t *testing.T) {
	index := &fakeIndex{registerErr: fmt.Errorf("no thread: %w", errTest)}
	h := serve(index, nil)
	for name, c := range map[string]struct {
		target, body string
		status       int
		text         string
	}{
		"no JSON":        {"/query", `{`, 400, "Invalid JSON: "},
		"a list":         {"/query", `[]`, 400, "want an object, got a list"},
		"two objects":    {"/query", `{}{}`, 400, "Invalid JSON: "},
		"no tokens":      {"/query", `{"model":"m","block_size":1}`, 400, "token_ids: missing"},
		"token text":     {"/query", `{"model":"m","block_size":1,"token_ids":["1"]}`, 400, "token_ids: [0]: want a token id"},
		"token too big":  {"/query", `{"model":"m","block_size":1,"token_ids":[1,4294967296]}`, 400, "token_ids: [1]: want a token id"},
		"method":         {"/query", ``, 405, "Method not allowed\n"},
		"register fails": {"/register", `{"endpoint":"tcp://e:1","modelname":"m","instance_id":"i","block_size":16}`, 500, "no thread: on purpose\n"},
		"no discovery":   {"/register", `{"engine":"http://e:8000"}`, 404, "engine: not offered"},
		"view":           {"/global_view?limit=-1", ``, 400, "limit: "},
		"services":       {"/services", `{}`, 405, "Method not allowed\n"},
	} {
		t.Run(name, func(t *testing.T) {
			w := ask(t, h, c.target, c.body)
			if w.Code != c.status || !strings.HasPrefix(w.Body.String(), c.text) || w.Header().Get("Content-Type") != "text/plain; charset=utf-8" {
				t.Errorf("%d %q %s", w.Code, w.Body, w.Header())
			}
			w = ask(t, h, c.target, c.body, "Accept", "application/json")
			var fault Fault
			if err := json.Unmarshal(w.Body.Bytes(), &fault); err != nil || w.Code != c.status || fault.Reason == "" || !strings.HasPrefix(fault.Error+"\n", c.text) {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
}

func tokensOf(tokens ...uint32) (out []byte) {
	for _, token := range tokens {
		out = binary.LittleEndian.AppendUint32(out, token)
	}
	return out
}
