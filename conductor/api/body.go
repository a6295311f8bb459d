package api

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

const (
	// maxKeptBytes is the largest memory that is kept for the next call.
	maxKeptBytes = 16 << 20
	// firstBodyBytes is what a body gets before a byte of it is there: as many as there may
	// be connections have it together.
	firstBodyBytes = 64 << 10
)

// scratch is the memory of one call.
type scratch struct {
	body, tokens, out []byte
	hashes            []kvevents.Hash
	matches           []contract.RankMatch

	rooms *rooms
	// charged is what it takes of its rooms' bytes.
	charged int64
}

// rooms hands out the memory of calls and bounds what those under way take together:
// each of them has a bound, too, but there may be as many as there are connections.
type rooms struct {
	pool sync.Pool
	// busy is the sum of what is charged, at most most; a body has maxBody bytes at most.
	busy          atomic.Int64
	most, maxBody int64
}

func (r *rooms) take() *scratch {
	if sc, ok := r.pool.Get().(*scratch); ok {
		return sc
	}
	return &scratch{rooms: r}
}

// give takes memory back, and what it was charged.
func (r *rooms) give(sc *scratch) {
	r.busy.Add(-sc.charged)
	sc.charged = 0
	sc.body, sc.tokens, sc.out, sc.hashes, sc.matches = sc.body[:0], sc.tokens[:0], sc.out[:0], sc.hashes[:0], sc.matches[:0]
	if cap(sc.body)+cap(sc.tokens)+cap(sc.out)+cap(sc.hashes)*hashBytes+cap(sc.matches)*matchBytes <= maxKeptBytes {
		r.pool.Put(sc)
	}
}

// What is charged for a hash and, about, for a match.
const (
	hashBytes  = 8
	matchBytes = 128
)

// need charges a call for what its memory has in it and for more bytes, or is errBusy.
func (sc *scratch) need(more int) error {
	all := int64(len(sc.body) + len(sc.tokens) + len(sc.out) + len(sc.hashes)*hashBytes + len(sc.matches)*matchBytes + more)
	if all <= sc.charged {
		return nil
	}
	if sc.rooms.busy.Add(all-sc.charged) > sc.rooms.most {
		sc.rooms.busy.Add(sc.charged - all)
		return errBusy
	}
	sc.charged = all
	return nil
}

// read reads a request's body into sc. It is charged as it arrives: what somebody says
// that he will send keeps nobody else out.
func (r *rooms) read(w http.ResponseWriter, req *http.Request, sc *scratch) (body []byte, err error) {
	length, from := req.ContentLength, io.Reader(req.Body)
	if length > r.maxBody {
		return nil, &http.MaxBytesError{Limit: r.maxBody}
	}
	if length < 0 { // it does not say
		from = http.MaxBytesReader(w, req.Body, r.maxBody)
		length = r.maxBody + 1 // what is one too long shows
	}
	sc.body = sc.body[:0]
	for step := int64(firstBodyBytes); int64(len(sc.body)) < length; step = int64(len(sc.body)) {
		begin := len(sc.body)
		end := begin + int(min(step, length-int64(begin)))
		if err := sc.need(end - begin); err != nil {
			return nil, err
		}
		sc.body = slices.Grow(sc.body, end-begin)
		n, err := fill(sc.body[begin:end], from)
		sc.body = sc.body[:begin+n]
		switch {
		case errors.Is(err, io.EOF) && (req.ContentLength < 0 || int64(len(sc.body)) == length):
			return sc.body, nil
		case err != nil:
			return nil, badBody(err)
		}
	}
	return sc.body, nil
}

// fill reads until dst is full or an error comes, which is the reader's own: a body that
// breaks off is not one that ends.
func fill(dst []byte, from io.Reader) (n int, err error) {
	for n < len(dst) && err == nil {
		var got int
		got, err = from.Read(dst[n:])
		n += got
	}
	return n, err
}

// badBody says that a body could not be read: its sender has gone, or is too slow.
func badBody(err error) error {
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return err
	}
	return syntaxErrorf("the body could not be read: %v", err)
}
