package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
)

// dial sends the beginning of a request, whatever length is said, and returns its
// connection.
func (s *site) dial(path string, length int, content string) net.Conn {
	s.t.Helper()
	c, err := net.Dial("tcp", s.server.Listener.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", path, length, content); err != nil {
		s.t.Fatal(err)
	}
	return c
}

// TestRoomForBodies: it is taken by what has come, not by what is said to come, and has
// bounds for all together.
func TestRoomForBodies(t *testing.T) {
	s := newSite(t, 1, func(o *siteOptions) { o.config.MaxBodyBytes, o.config.BodiesBytes = 1<<20, 3<<19 })
	taken := func(least int64) func() bool {
		return func() bool { return s.router.bodies.taken.Load() >= least }
	}
	var promises []net.Conn
	for range 8 {
		promises = append(promises, s.dial(pathCompletions, 1<<20, ""))
	}
	s.until("eight have come", taken(8*firstBytes))
	if n := s.router.bodies.taken.Load(); n != 8*firstBytes {
		t.Errorf("%d bytes for bodies of none", n)
	}
	for _, c := range promises {
		c.Close()
	}
	free := func() bool { return s.router.bodies.taken.Load() == 0 }
	s.until("they have gone", free)
	big := s.dial(pathCompletions, 1<<20, strings.Repeat(" ", 900<<10))
	s.until("most of it has come", taken(900<<10))
	for _, path := range []string{pathCompletions, "/v1/embeddings", "/schedule", "/v1/contexts"} {
		content := completion(strings.Repeat("x", 900<<10))
		if got := s.post(path, content); got.status != http.StatusTooManyRequests || got.header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
	big.Close()
	s.until("it has gone", free)
	if got := s.post("/v1/embeddings", completion(strings.Repeat("x", 900<<10))); got.status != http.StatusOK {
		t.Errorf("%d %s", got.status, got.body)
	}
	s.idle()
	s.until("all is given back", free)
}

func TestReadInto(t *testing.T) {
	for _, n := range []int{0, 1, firstBytes - 1, firstBytes, firstBytes + 1, 10*firstBytes + 7} {
		for _, length := range []int64{-1, int64(n)} {
			text := strings.Repeat("x", n)
			all := room{most: 1 << 30}
			content, err := readInto(&all, iotest.HalfReader(strings.NewReader(text)), length)
			if err != nil || string(content) != text || all.taken.Load() != int64(cap(content)) || length >= 0 && cap(content) > n+1 {
				t.Errorf("%d of %d: %d in %d, %d taken, %v", n, length, len(content), cap(content), all.taken.Load(), err)
			}
			few := room{most: int64(n)}
			if _, err := readInto(&few, strings.NewReader(text), -1); n > 0 && n < firstBytes && !errors.Is(err, errNoRoom) || err != nil && few.taken.Load() != 0 {
				t.Errorf("%d: %v, %d taken", n, err, few.taken.Load())
			}
		}
	}
	all := room{most: 1 << 30}
	if _, err := readInto(&all, iotest.ErrReader(io.ErrUnexpectedEOF), 5); !errors.Is(err, io.ErrUnexpectedEOF) || all.taken.Load() != 0 {
		t.Errorf("%v, %d taken", err, all.taken.Load())
	}
}

// TestWaitersThatLeave: who waits for a place and goes makes room for another, whatever
// it asked for.
func TestWaitersThatLeave(t *testing.T) {
	s := newSite(t, 1, func(o *siteOptions) { o.config.MaxInFlight, o.config.MaxWaiting = 1, 1 })
	s.engines[0].do(hangs)
	content := completion("x")
	first := s.dial(pathCompletions, len(content), content)
	s.until("one is under way", func() bool { return s.router.Stats().InFlight == 1 })
	for _, path := range []string{pathCompletions, "/v1/embeddings", "/schedule", "/v1/contexts"} {
		waits := s.dial(path, len(content), content)
		s.until(path+" waits", func() bool { return s.router.Stats().Waiting == 1 })
		waits.Close()
		s.until(path+" has gone", func() bool { return s.router.Stats().Waiting == 0 })
	}
	first.Close()
	s.idle()
}

// TestQuestionsHaveBounds: when engines are asked for too many token ids, a request does
// without.
func TestQuestionsHaveBounds(t *testing.T) {
	s := newSite(t, 1)
	e, hold := s.engines[0], make(chan struct{})
	e.mu.Lock()
	e.mu.hold = hold
	e.mu.Unlock()
	k := s.router.tokenizer
	k.most = 1
	gone, leave := context.WithCancel(t.Context())
	leave()
	if _, err := k.ids(gone, "m", completion("a"), ""); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := k.ids(t.Context(), "m", completion("b"), ""); !errors.Is(err, errAsking) {
		t.Errorf("%v", err)
	}
	close(hold)
	s.until("the first is answered", func() bool { return k.asking.Load() == 0 })
	k.room = &room{most: 1}
	if _, err := k.ids(t.Context(), "m", completion("c"), ""); !errors.Is(err, errAsking) {
		t.Errorf("%v", err)
	}
	k.room = &room{most: 1000}
	if ids, err := k.ids(t.Context(), "m", completion("d"), ""); err != nil || len(ids) != tokenBytes {
		t.Errorf("%v, %v", ids, err)
	}
	s.until("all is given back", func() bool { return k.room.taken.Load() == 0 && k.asking.Load() == 0 })
}
