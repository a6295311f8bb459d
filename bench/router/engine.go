package router

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// model is what the engines serve, blockTokens the size of their blocks.
const (
	model       = "m"
	blockTokens = 16
)

// server is an HTTP server on a port of its own.
type server struct {
	url   string
	inner *http.Server
	done  chan struct{}
}

func serve(handler http.Handler) (*server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("bench/router: %w", err)
	}
	s := &server{url: "http://" + listener.Addr().String(), inner: &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		_ = s.inner.Serve(listener) // it ends by close
	}()
	return s, nil
}

func (s *server) close() {
	_ = s.inner.Close() // nobody asks any more
	<-s.done
}

// engine answers as vLLM does, at once.
type engine struct{}

// ServeHTTP implements http.Handler.
func (engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/health":
	case "/metrics":
		fmt.Fprintln(w, `vllm:num_requests_running{engine="0"} 0`)
	case "/v1/models":
		fmt.Fprintf(w, `{"data":[{"id":%q}]}`, model)
	case "/tokenize":
		var asked struct{ Prompt string }
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, `{"count":0,"tokens":%s}`, listOf(tokensOf(asked.Prompt)))
	default:
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		control := http.NewResponseController(w)
		for range 3 {
			fmt.Fprintf(w, "data: {\"choices\":[{\"text\":\"x\"}]}\n\n")
			_ = control.Flush() // who has gone does not read it
		}
		fmt.Fprintf(w, "data: [DONE]\n\n")
	}
}

// charactersOfToken make a token of the engines'.
const charactersOfToken = 4

func tokensOf(text string) []byte {
	var tokens []byte
	for ; len(text) >= charactersOfToken; text = text[charactersOfToken:] {
		tokens = binary.LittleEndian.AppendUint32(tokens, binary.LittleEndian.Uint32([]byte(text))%150_000)
	}
	return tokens
}

// listOf is a JSON list of tokens.
func listOf(tokens []byte) []byte {
	list := []byte{'['}
	for i := 0; i < len(tokens); i += 4 {
		if i > 0 {
			list = append(list, ',')
		}
		list = strconv.AppendUint(list, uint64(binary.LittleEndian.Uint32(tokens[i:])), 10)
	}
	return append(list, ']')
}

// index is the real one, filled with what each engine is to hold.
type index struct {
	inner   *prefixindex.Index
	engines []string
}

func newIndex(engines []string, held [][]byte) *index {
	x := &index{prefixindex.New(prefixindex.Options{Seed: 1}), engines}
	hash := kvevents.Hash(1)
	for i, name := range engines {
		source := x.inner.Open(prefixindex.Origin{Model: model, Instance: name})
		for j := i; j < len(held); j += len(engines) {
			stored := &kvevents.BlockStored{BlockSize: blockTokens, Medium: kvevents.MediumGPU}
			for n := 0; (n+1)*blockTokens*4 <= len(held[j]); n++ {
				hash++
				stored.Hashes = append(stored.Hashes, hash)
			}
			for n := range len(stored.Hashes) * blockTokens {
				stored.TokenIDs = append(stored.TokenIDs, binary.LittleEndian.Uint32(held[j][n*4:]))
			}
			source.Apply(&kvevents.Batch{Events: []kvevents.Event{stored}})
		}
	}
	return x
}

// Services implements conductor/router.Index.
func (x *index) Services() []contract.Status {
	var all []contract.Status
	for _, name := range x.engines {
		all = append(all, contract.Status{
			Service: contract.Service{Instance: name, Model: model, Tenant: prefixindex.DefaultTenant, BlockTokens: blockTokens}, State: contract.Complete,
		})
	}
	return all
}

// Query implements conductor/router.Index.
func (x *index) Query(q *contract.Query, dst []contract.RankMatch) []contract.RankMatch {
	var room [16]prefixindex.Match
	for _, m := range x.inner.Query(&prefixindex.Query{Model: q.Model, BlockTokens: q.BlockTokens, Tokens: q.Tokens}, room[:0]) {
		dst = append(dst, contract.RankMatch{Match: m, State: contract.Complete})
	}
	return dst
}
