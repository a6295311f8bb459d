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

// maxKeptBytes is the largest buffer that is kept for the next call.
const maxKeptBytes = 16 << 20

// scratch is the memory of one call.
type scratch struct {
	body, tokens, out []byte
	hashes            []kvevents.Hash
	matches           []contract.RankMatch
}

// rooms hands out the memory of calls and bounds what bodies take together: each of them
// has a bound, too, but there may be as many as there are connections.
type rooms struct {
	pool sync.Pool
	// busy is the sum of the lengths of the bodies under way, at most most; a body has
	// maxBody bytes at most.
	busy          atomic.Int64
	most, maxBody int64
}

func (r *rooms) take() *scratch {
	if sc, ok := r.pool.Get().(*scratch); ok {
		return sc
	}
	return &scratch{}
}

// give takes memory back.
func (r *rooms) give(sc *scratch) {
	if cap(sc.body)+cap(sc.tokens)+cap(sc.out) > maxKeptBytes {
		return
	}
	r.pool.Put(sc)
}

// read reads a request's body into sc. Its length counts until done is called, which
// must be done also after an error.
func (r *rooms) read(w http.ResponseWriter, req *http.Request, sc *scratch) (body []byte, done func(), err error) {
	length := req.ContentLength
	if length > r.maxBody {
		return nil, func() {}, &http.MaxBytesError{Limit: r.maxBody}
	}
	reserved := length
	if length < 0 {
		reserved = r.maxBody // it does not say
	}
	done = func() { r.busy.Add(-reserved) }
	if r.busy.Add(reserved) > r.most {
		return nil, done, errBusy
	}
	if length < 0 {
		sc.body, err = appendAll(sc.body[:0], http.MaxBytesReader(w, req.Body, r.maxBody))
		return sc.body, done, badBody(err)
	}
	sc.body = slices.Grow(sc.body[:0], int(length))[:length]
	_, err = io.ReadFull(req.Body, sc.body)
	return sc.body, done, badBody(err)
}

// badBody says that a body could not be read: its sender has gone, or is too slow.
func badBody(err error) error {
	var large *http.MaxBytesError
	if err == nil || errors.As(err, &large) {
		return err
	}
	return syntaxErrorf("the body could not be read: %v", err)
}

// appendAll is io.ReadAll into memory that is there.
func appendAll(dst []byte, from io.Reader) ([]byte, error) {
	for {
		dst = slices.Grow(dst, 512)
		n, err := from.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		if errors.Is(err, io.EOF) {
			return dst, nil
		}
		if err != nil {
			return dst, err
		}
	}
}
