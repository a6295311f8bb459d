package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// held is a real index of eight engines, half of which hold the prompt.
type held struct {
	fakeIndex
	index *prefixindex.Index
	found []prefixindex.Match
}

const benchBlock = 16

func newHeld(tokens []uint32) *held {
	h := &held{index: prefixindex.New(prefixindex.Options{Seed: 1})}
	for i := range 8 {
		src := h.index.Open(prefixindex.Origin{Model: "m", Instance: fmt.Sprint("engine-", i)})
		event := &kvevents.BlockStored{BlockSize: benchBlock, Medium: "GPU"}
		for b := 0; i%2 == 0 && b+benchBlock <= len(tokens); b += benchBlock {
			event.Hashes = append(event.Hashes, kvevents.Hash(b+1))
		}
		if event.TokenIDs = tokens; len(event.Hashes) > 0 {
			src.Apply(&kvevents.Batch{Events: []kvevents.Event{event}})
		}
	}
	return h
}

// Query implements Indexer.
func (h *held) Query(q *contract.Query, dst []contract.RankMatch) []contract.RankMatch {
	h.found = h.index.Query(&prefixindex.Query{Tenant: q.Tenant, Model: q.Model, BlockTokens: q.BlockTokens, Tokens: q.Tokens, Hashes: q.Hashes}, h.found[:0])
	for _, m := range h.found {
		dst = append(dst, contract.RankMatch{Match: m, State: contract.Complete})
	}
	return dst
}

// BenchmarkQuery is a query over HTTP, from the client's first byte to its last.
func BenchmarkQuery(b *testing.B) {
	for _, n := range []int{8 << 10, 32 << 10, 128 << 10} {
		tokens := make([]uint32, n)
		for i := range tokens {
			tokens[i] = uint32(i*7919) % 128_000
		}
		text, err := json.Marshal(map[string]any{"model": "m", "block_size": benchBlock, "token_ids": tokens})
		if err != nil {
			b.Fatal(err)
		}
		packed := []byte(pack(b, map[string]any{"model": "m", "block_size": benchBlock, "token_ids": tokensOf(tokens...)}))
		server := httptest.NewServer(serve(newHeld(tokens), nil))
		for _, c := range []struct {
			name, target, kind string
			body               []byte
		}{
			{"json", "/query", "application/json", text}, {"msgpack", "/query", msgpackType, packed},
			{"binary", "/query?model=m&block_size=16", "application/octet-stream", tokensOf(tokens...)},
		} {
			b.Run(fmt.Sprintf("form=%s/tokens=%d", c.name, n), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(c.body)))
				for b.Loop() {
					response, err := server.Client().Post(server.URL+c.target, c.kind, bytes.NewReader(c.body))
					if err != nil {
						b.Fatal(err)
					}
					answer, err := io.ReadAll(response.Body)
					if err != nil || response.StatusCode != http.StatusOK || !bytes.Contains(answer, []byte("engine-6")) || response.Body.Close() != nil {
						b.Fatal(err, response.Status, string(answer))
					}
				}
			})
		}
		server.Close()
	}
}

// BenchmarkTokens is the decoding of a prompt alone, beside encoding/json's.
func BenchmarkTokens(b *testing.B) {
	tokens := make([]uint32, 128<<10)
	for i := range tokens {
		tokens[i] = uint32(i*7919) % 128_000
	}
	text, err := json.Marshal(map[string]any{"model": "m", "block_size": benchBlock, "token_ids": tokens})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("by=us", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		sc := newScratch()
		for b.Loop() {
			if q, err := parseQuery(text, formJSON, false, sc); err != nil || len(q.Tokens) != 4*len(tokens) {
				b.Fatal(err)
			}
		}
	})
	b.Run("by=encoding-json", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			var q struct {
				Model  string   `json:"model"`
				Tokens []uint32 `json:"token_ids"`
			}
			if err := json.Unmarshal(text, &q); err != nil || len(q.Tokens) != len(tokens) {
				b.Fatal(err)
			}
		}
	})
}
