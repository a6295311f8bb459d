package api

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"testing"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
)

// wireQuery is a query as encoding/json reads it.
type wireQuery struct {
	Model          *string  `json:"model"`
	LoRA           *string  `json:"lora_name"`
	Tenant         *string  `json:"tenant_id"`
	Instance       *string  `json:"instance_id"`
	CacheSalt      *string  `json:"cache_salt"`
	AdditionalSalt *string  `json:"additional_salt"`
	BlockSize      *int64   `json:"block_size"`
	Tokens         *[]int64 `json:"token_ids"`
}

// ok tells whether its values are in range.
func (q *wireQuery) ok() bool {
	if q.Tokens != nil {
		for _, token := range *q.Tokens {
			if token < math.MinInt32 || token > math.MaxUint32 {
				return false
			}
		}
	}
	for _, text := range []*string{q.Model, q.LoRA, q.Tenant, q.Instance, q.CacheSalt, q.AdditionalSalt} {
		if text != nil && len(*text) > maxTextBytes {
			return false
		}
	}
	return q.Model != nil && *q.Model != "" && q.Tokens != nil && (q.BlockSize == nil || *q.BlockSize >= 1 && *q.BlockSize <= maxBlockTokens)
}

// What the hand-written decoder makes of a body is what encoding/json makes of it.
func FuzzJSONQuery(f *testing.F) {
	for _, body := range []string{
		query, `{}`, `{"model":"m","token_ids":[]}`, `{"model":"\u00e9\ud800","token_ids":[ 1 ,-2147483648,4294967295, 0 ],"x":{"y":[1,"]"]}}`,
		`{"model":"m","token_ids":[01]}`, `{"model":"m","token_ids":[1.0]}`, `{"model":"m","token_ids":[1e3]}`, `{"model":"m","token_ids":[-0]}`,
		`{"model":"m","token_ids":[1,]}`, `{"model":"m","token_ids":null}`, `{"Model":"m","TOKEN_IDS":[7],"model":null,"model":"n"}`,
		`{"model":"m","token_ids":[1],"token_ids":[2,3],"block_size":16}`, `{"model":"m","token_ids":[4294967296]}`, `{"model":"m","token_ids":[1]}x`,
		`{"model":"m" "token_ids":[1]}`, "{\"model\":\"a\x00\",\"token_ids\":[]}", "{\"model\":\"\xff\",\"token_ids\":[]}", `{"model":"m","token_ids":[nul]}`,
		`{"model":"m","token_ids":[1, 22, 333, 4444, 55555, 666666, 7777777, 88888888, 999999999,1234567 ,0, 00, 1]}`,
		`{"model":"m","token_ids":[1,22,333,4444,55555,666666,7777777,12345678,4294967295,0,10,  9, 8 ,7,6,5,4,3,2,1]}`,
		`{"model":"m","token_ids":[1],"block_size":9223372036854775808}`, `{"model":"m","token_ids":[1],"block_size":1e1}`, ` {"model" : "m","token_ids":[[1]]} `,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if bytes.Contains(body, []byte("seq_hashes")) {
			return // another decoder of the same field
		}
		var want wireQuery
		theirs := json.Unmarshal(body, &want)
		sc := newScratch()
		got, ours := parseQuery(bytes.Clone(body), formJSON, false, sc)
		if (ours == nil) != (theirs == nil && want.ok()) {
			// A name that is there twice, once well and once not, is not worth being equal.
			if names := duplicates(body); names {
				return
			}
			t.Fatalf("%q: %v, encoding/json says %v, %+v", body, ours, theirs, want)
		}
		if ours != nil {
			return
		}
		text := func(p *string) string {
			if p == nil {
				return ""
			}
			return *p
		}
		tenant := text(want.Tenant)
		if tenant == "" {
			tenant = "default"
		}
		if got.Model != text(want.Model) || got.LoRA != text(want.LoRA) || got.Tenant != tenant || got.Instance != text(want.Instance) ||
			got.CacheSalt != text(want.CacheSalt) || got.AdditionalSalt != text(want.AdditionalSalt) || got.HasAdditionalSalt != (want.AdditionalSalt != nil) {
			t.Fatalf("%q: %+v, encoding/json says %+v", body, got.Query, want)
		}
		var tokens []byte
		for _, token := range *want.Tokens {
			tokens = binary.LittleEndian.AppendUint32(tokens, uint32(token))
		}
		if !bytes.Equal(got.Tokens, tokens) || want.BlockSize != nil && int64(got.BlockTokens) != *want.BlockSize {
			t.Fatalf("%q: %x, want %x", body, got.Tokens, tokens)
		}
	})
}

// duplicates tells whether an object has a field twice, however it is written.
func duplicates(body []byte) bool {
	seen := map[string]bool{}
	twice := false
	_ = readJSON(body, func(name string, v value) error {
		known, ok := canonical(name, v, "model", "token_ids", "block_size", "tenant_id", "instance_id", "lora_name", "cache_salt", "additional_salt", "lora_id")
		if ok && seen[known] {
			twice = true
		}
		seen[known] = true
		return v.skip()
	})
	return twice
}

// What the msgpack decoder takes, the library takes, too, and makes the same of it.
func FuzzMsgpackQuery(f *testing.F) {
	for _, tokens := range []any{[]int64{1, -1, 70000, 1 << 31}, []byte{1, 0, 0, 0}, nil, "text"} {
		f.Add([]byte(pack(f, map[string]any{"model": "m", "block_size": 16, "token_ids": tokens, "cache_salt": "s"})))
	}
	f.Add([]byte("\x82\xa5model\xa1m\xa9token_ids\xdc\x00\x01\xcf\x00\x00\x00\x00\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, ours := parseQuery(bytes.Clone(body), formMsgpack, false, newScratch())
		if ours != nil {
			return
		}
		var want struct {
			Model  string `msgpack:"model"`
			Tenant string `msgpack:"tenant_id"`
			Salt   string `msgpack:"cache_salt"`
			Tokens any    `msgpack:"token_ids"`
		}
		if err := msgpack.Unmarshal(body, &want); err != nil {
			t.Fatalf("%x was taken, and the library says %v", body, err)
		}
		if want.Model != got.Model || want.Salt != got.CacheSalt {
			t.Fatalf("%x: %+v, want %+v", body, got.Query, want)
		}
		if raw, ok := want.Tokens.([]byte); ok && !bytes.Equal(raw, got.Tokens) {
			t.Fatalf("%x: tokens %x, want %x", body, got.Tokens, raw)
		}
		if list, ok := want.Tokens.([]any); ok && len(got.Tokens) != 4*len(list) {
			t.Fatalf("%x: %d bytes of tokens, want %d tokens", body, len(got.Tokens), len(list))
		}
	})
}

// Whatever is sent to whatever call in whatever encoding, the answer is one of the
// contract's, in its form.
func FuzzHTTP(f *testing.F) {
	kinds := []string{"application/json", msgpackType, "application/octet-stream", ""}
	calls := Calls()
	f.Add(uint8(0), uint8(0), "", []byte(documented))
	f.Add(uint8(2), uint8(0), "", []byte(query))
	f.Add(uint8(3), uint8(0), "", []byte(`{"model":"m","seq_hashes":["ff",1,-1],"block_size":16}`))
	f.Add(uint8(4), uint8(0), "", []byte(`{"queries":[`+query+`,{"model":1},7,{"model":"m","seq_hashes":[1,"x"],"token_ids":[]}]}`))
	f.Add(uint8(4), uint8(1), "", []byte(pack(f, map[string]any{"queries": []any{map[string]any{"model": "m", "token_ids": []int{1}}, 7, map[string]any{"x": []int{1}}}})))
	f.Add(uint8(2), uint8(2), "model=m&block_size=16", []byte{1, 0, 0, 0})
	f.Add(uint8(6), uint8(0), "limit=3", []byte{})
	f.Fuzz(func(t *testing.T, call, kind uint8, params string, body []byte) {
		path := calls[int(call)%len(calls)]
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://conductor"+path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.URL.RawQuery = params
		if len(body) == 0 {
			request.Method = http.MethodGet
		}
		request.Header.Set("Content-Type", kinds[int(kind)%len(kinds)])
		index := &fakeIndex{snapshot: "s"}
		w := record(serve(index, nil), request)
		if !slices.Contains([]int{200, 400, 404, 405, 409, 413}, w.Code) || w.Body.Len() == 0 {
			t.Fatalf("%s %q: %d %q", path, body, w.Code, w.Body)
		}
		switch w.Header().Get("Content-Type") {
		case "application/json":
			if !json.Valid(w.Body.Bytes()) {
				t.Fatalf("%s %q: %s", path, body, w.Body)
			}
		case msgpackType:
			var v any
			if d := msgpack.NewDecoder(w.Body); d.Decode(&v) != nil || w.Body.Len() > 0 {
				t.Fatalf("%s %q: no msgpack, or %d bytes behind it", path, body, w.Body.Len())
			}
		case "text/plain; charset=utf-8":
			if w.Code == 200 || !utf8.Valid(w.Body.Bytes()) && utf8.Valid(body) && utf8.ValidString(params) {
				t.Fatalf("%s %q: %d %q", path, body, w.Code, w.Body)
			}
		}
		for _, q := range index.asked {
			if q.Model == "" || q.Tenant == "" || q.BlockTokens < 0 || len(q.Tokens)%4 != 0 || q.Tokens != nil && q.Hashes != nil {
				t.Fatalf("%s %q asked %+v", path, body, q)
			}
		}
		for i := range index.services {
			if s := &index.services[i]; s.Endpoint == "" || s.Instance == "" || s.Model == "" || s.Rank < 0 || s.BlockTokens < 0 {
				t.Fatalf("%s %q registered %+v", path, body, s)
			}
		}
	})
}
