package api

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// fakeIndex keeps services and answers with what a test has put there.
type fakeIndex struct {
	mu       sync.Mutex
	services []contract.Status
	matches  map[string][]contract.RankMatch // by tenant
	asked    []contract.Query
	view     contract.View
	stats    contract.Stats
	unready  []string
	// snapshot is written before snapshotErr is returned.
	snapshot    string
	snapshotErr error
	registerErr error
}

var _ Indexer = (*fakeIndex)(nil)

func (f *fakeIndex) Register(_ context.Context, s contract.Service) (contract.Registered, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.registerErr != nil {
		return contract.Registered{}, f.registerErr
	}
	for i := range f.services {
		if f.services[i].Key() != s.Key() {
			continue
		}
		if f.services[i].Service != s {
			return contract.Registered{}, contract.ErrConflict
		}
		return contract.Registered{Existed: true}, nil
	}
	f.services = append(f.services, contract.Status{Service: s})
	return contract.Registered{}, nil
}

func (f *fakeIndex) Unregister(_ context.Context, key contract.ServiceKey) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := len(f.services)
	f.services = slices.DeleteFunc(f.services, func(s contract.Status) bool { return s.Key() == key })
	if len(f.services) == before {
		return contract.ErrNotFound
	}
	return nil
}

func (f *fakeIndex) Services() []contract.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.services)
}

func (f *fakeIndex) Query(q *contract.Query, dst []contract.RankMatch) []contract.RankMatch {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept := *q
	kept.Tokens, kept.Hashes = slices.Clone(q.Tokens), slices.Clone(q.Hashes)
	f.asked = append(f.asked, kept)
	for _, m := range f.matches[q.Tenant] {
		if q.Instance == "" || q.Instance == m.Instance {
			dst = append(dst, m)
		}
	}
	return dst
}

// last returns the latest query.
func (f *fakeIndex) last() contract.Query {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.asked) == 0 {
		return contract.Query{}
	}
	return f.asked[len(f.asked)-1]
}

func (f *fakeIndex) View(limit int) contract.View {
	v := f.view
	if len(v.Hashes) > limit {
		v.Hashes, v.Truncated = v.Hashes[:limit], true
	}
	return v
}

func (f *fakeIndex) Stats() contract.Stats { return f.stats }
func (f *fakeIndex) Unready() []string     { return f.unready }

func (f *fakeIndex) Snapshot(_ context.Context, to io.Writer) error {
	if _, err := io.WriteString(to, f.snapshot); err != nil {
		return err
	}
	return f.snapshotErr
}

// match is what one rank holds: in and through by tier.
func match(instance string, rank int, in, through [3]int) contract.RankMatch {
	return contract.RankMatch{Match: prefixindex.Match{Instance: instance, Rank: rank, In: in, Through: through}, State: contract.Complete}
}

// serve returns a handler in front of an index.
func serve(index Indexer, change func(*Config)) http.Handler {
	cfg := Config{Index: index, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&cfg)
	}
	mux := http.NewServeMux()
	New(cfg).Register(mux)
	return mux
}

// ask makes a call. A body is a POST, none a GET.
func ask(t testing.TB, h http.Handler, target, body string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	r := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return record(h, r)
}

func record(h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

var errTest = errors.New("on purpose")

func hashesOf(numbers ...uint64) (hashes []kvevents.Hash) {
	for _, n := range numbers {
		hashes = append(hashes, kvevents.Hash(n))
	}
	return hashes
}

// newScratch is memory of rooms of its own.
func newScratch() *scratch { return New(Config{}).rooms.take() }
