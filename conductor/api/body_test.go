package api

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

// bodies reads one of each length through a server's rooms.
func TestBodies(t *testing.T) {
	r := New(Config{MaxBodyBytes: 300_000}).rooms.take().rooms
	for _, size := range []int{0, 1, firstBodyBytes - 1, firstBodyBytes, firstBodyBytes + 1, 2 * firstBodyBytes, 300_000, 300_001} {
		text := strings.Repeat("0123456789abcdef", size/16+1)[:size]
		for _, length := range []int64{int64(size), -1} {
			request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/query", iotest.HalfReader(strings.NewReader(text)))
			request.ContentLength = length
			sc := r.take()
			body, err := r.read(httptest.NewRecorder(), request, sc)
			if size > 300_000 {
				if status, _ := faultOf(err, formJSON); status != http.StatusRequestEntityTooLarge {
					t.Errorf("%d bytes of %d: %v", size, length, err)
				}
			} else if err != nil || string(body) != text {
				t.Errorf("%d bytes of %d: %d, %v", size, length, len(body), err)
			}
			r.give(sc)
		}
		// One that breaks off is not whole, whether it said its length or not.
		for _, from := range []struct {
			io.Reader
			length int64
		}{{strings.NewReader(text), int64(size) + 1}, {io.MultiReader(strings.NewReader(text), iotest.ErrReader(io.ErrUnexpectedEOF)), -1}} {
			request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/query", from.Reader)
			request.ContentLength = from.length
			sc := r.take()
			if _, err := r.read(httptest.NewRecorder(), request, sc); err == nil {
				t.Errorf("%d bytes of %d are whole", size, from.length)
			}
			r.give(sc)
		}
	}
	if n := r.busy.Load(); n != 0 {
		t.Errorf("%d bytes are charged for nothing", n)
	}
}

// Who says that much will come, and sends little, keeps nobody out.
func TestSlowBodies(t *testing.T) {
	s := New(Config{Index: &fakeIndex{}, Log: slog.New(slog.DiscardHandler)})
	for i := range 64 {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/query", io.MultiReader(strings.NewReader("{"), iotest.ErrReader(io.ErrUnexpectedEOF)))
		request.ContentLength = []int64{-1, DefaultMaxBodyBytes}[i%2]
		if _, err := s.rooms.read(httptest.NewRecorder(), request, s.rooms.take()); err == nil { // and it is not given back
			t.Fatal("a byte is a body")
		}
	}
	mux := http.NewServeMux()
	s.Register(mux)
	if w := ask(t, mux, "/query", query); w.Code != http.StatusOK {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// hashIndex notes how much memory a query's hashes have.
type hashIndex struct {
	fakeIndex
	room int
}

func (x *hashIndex) Query(q *contract.Query, dst []contract.RankMatch) []contract.RankMatch {
	x.room = cap(q.Hashes)
	return dst
}

// What is made of a body is charged, and not larger than it has to be.
func TestChargedHashes(t *testing.T) {
	const hashes = 1 << 16
	list := bytes.Repeat([]byte("1,"), hashes)
	body := `{"model":"m","seq_hashes":[` + string(list[:len(list)-1]) + "]}"
	index := &hashIndex{}
	if w := ask(t, serve(index, nil), "/query_by_hash", body); w.Code != http.StatusOK || index.room < hashes || index.room > hashes*5/4 {
		t.Errorf("%d: room for %d, of %d", w.Code, index.room, hashes)
	}
	tight := serve(index, func(c *Config) { c.MaxBodyBytes, c.MaxBusyBytes = int64(len(body)), hashes*hashBytes })
	if w := ask(t, tight, "/query_by_hash", body); w.Code != http.StatusServiceUnavailable {
		t.Errorf("hashes and their body have no room together: %d %s", w.Code, w.Body)
	}
	packed := pack(t, map[string]any{"queries": []any{map[string]any{"model": "m", "seq_hashes": make([]int, 8*hashes)}}})
	tight = serve(index, func(c *Config) { c.MaxBodyBytes, c.MaxBusyBytes = int64(len(packed)), 1 })
	if w := ask(t, tight, "/query_batch", packed, "Content-Type", msgpackType); w.Code != http.StatusServiceUnavailable {
		t.Errorf("in a batch: %d %s", w.Code, w.Body)
	}
}

// A batch of few bytes does not ask for an answer of any size.
func TestLargeBatch(t *testing.T) {
	index := &fakeIndex{matches: map[string][]contract.RankMatch{"default": nil}}
	for i := range 400 {
		index.matches["default"] = append(index.matches["default"], match(strings.Repeat("i", 500)+string(rune('a'+i%26)), i, [3]int{16}, [3]int{16, 16, 16}))
	}
	body := `{"queries":[` + strings.TrimSuffix(strings.Repeat(`{"model":"m","token_ids":[]},`, maxBatch), ",") + `]}`
	for _, kind := range []string{"application/json", msgpackType} {
		if kind == msgpackType {
			one := map[string]any{"model": "m", "token_ids": []int{1}}
			all := make([]any, maxBatch)
			for i := range all {
				all[i] = one
			}
			body = pack(t, map[string]any{"queries": all})
		}
		w := ask(t, serve(index, nil), "/query_batch", body, "Content-Type", kind, "Accept", "application/json")
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "ask for less") {
			t.Errorf("%s: %d, %d bytes", kind, w.Code, w.Body.Len())
		}
	}
}
