package indexer

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/feed"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// quietTransport has publishers that say nothing but that they are there, except at one endpoint,
// where nobody is.
type quietTransport struct{ absent string }

func (q quietTransport) Subscribe(endpoint, _ string, _ func([][]byte), link func(bool)) (io.Closer, error) {
	link(endpoint != q.absent)
	return io.NopCloser(nil), nil
}

func (q quietTransport) Ask(endpoint string, _ [][]byte, hear func([][]byte)) (io.Closer, error) {
	if endpoint != q.absent {
		go hear([][]byte{{}, {}, kvevents.ReplayRequest(1<<64 - 1)[1], {}})
	}
	return io.NopCloser(nil), nil
}

// nodes registers engines each of which has a store of its own.
func nodes(tb testing.TB, x *Indexer, n int) {
	tb.Helper()
	for i := range n {
		at := fmt.Sprint("ipc:///", i)
		engine := contract.Service{Endpoint: at, ReplayEndpoint: at + "/replay", Type: contract.TypeVLLM, Model: "m", Instance: fmt.Sprintf("e%04d", i), BlockTokens: 16}
		store := engine
		store.Type, store.Rank, store.Endpoint, store.ReplayEndpoint, store.Tenant = contract.TypeMooncake, prefixindex.Shared, at+"/store", at+"/store", ""
		for _, s := range []contract.Service{engine, store} {
			if _, err := x.Register(context.Background(), s); err != nil {
				tb.Fatal(err)
			}
		}
	}
}

// What is known of a rank is what is known of its engine and of the stores that it loads from,
// not of others'.
func TestWhoseStoresCount(t *testing.T) {
	everybodys := contract.Service{Endpoint: "ipc:///all", ReplayEndpoint: "ipc:///all", Type: contract.TypeMooncake, Model: "m", Instance: "master"}
	other := everybodys
	other.Model, other.Instance, other.Endpoint, other.ReplayEndpoint = "another", "another", "ipc:///another", "ipc:///another"
	for absent, want := range map[string]func(instance string) contract.State{
		"nobody": func(string) contract.State { return contract.Complete },
		"ipc:///3/store": func(instance string) contract.State {
			if instance == "e0003" {
				return contract.Connecting
			}
			return contract.Complete
		},
		"ipc:///all":     func(string) contract.State { return contract.Connecting },
		"ipc:///another": func(string) contract.State { return contract.Complete },
	} {
		x := newIndexer(t, &Options{Transport: quietTransport{absent}, MaxServices: 100, Log: slog.New(slog.DiscardHandler), Times: feed.Times{Connect: time.Hour, Answer: time.Hour}})
		nodes(t, x, 5)
		for _, s := range []contract.Service{everybodys, other} {
			register(t, x, s)
		}
		eventually(t, x, func() bool {
			rows := rowsOf(x, &contract.Query{Model: "m", Tokens: prompt(1)})
			for _, r := range rows {
				if r.State != want(r.Instance) {
					return false
				}
			}
			return len(rows) == 5
		})
	}
}

// A query of many engines with a store each.
func BenchmarkQueryOfNodes(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprint("nodes=", n), func(b *testing.B) {
			x := New(&Options{Transport: quietTransport{}, MaxServices: 2 * n, Log: slog.New(slog.DiscardHandler)})
			defer x.Close()
			nodes(b, x, n)
			q := &contract.Query{Model: "m", Tokens: prompt(1)}
			var rows []contract.RankMatch
			for b.Loop() {
				rows = x.Query(q, rows[:0])
			}
			b.ReportMetric(float64(len(rows)), "rows")
		})
	}
}
