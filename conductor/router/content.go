package router

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// room is how many bytes there may be at a time of something that others send us.
type room struct {
	most  int64
	taken atomic.Int64
}

// take takes bytes, if there is room for them.
func (r *room) take(n int64) bool {
	if r.taken.Add(n) > r.most {
		r.taken.Add(-n)
		return false
	}
	return true
}

func (r *room) give(n int64) { r.taken.Add(-n) }

const (
	// readTimeout is how long a client may take to send its body.
	readTimeout = time.Minute
	// firstBytes of a body are made room for before it has come. What its length is said to
	// be is only said.
	firstBytes = 16 << 10
)

var errNoRoom = errors.New("there is no room for more bodies")

// readObject reads a request's body, of at most so many bytes, which is an object. Who
// gets it calls done when it is not needed any more.
func (r *Router) readObject(w http.ResponseWriter, in *http.Request, limit int64) (b *body, done func(), ok bool) {
	content, done, ok := r.readBody(w, in, limit)
	if !ok {
		return nil, nil, false
	}
	b, err := parseBody(content)
	if err != nil {
		done()
		fail(w, http.StatusBadRequest, badRequest, "", err.Error())
		return nil, nil, false
	}
	return b, done, true
}

// readBody reads a request's body, of at most so many bytes.
func (r *Router) readBody(w http.ResponseWriter, in *http.Request, limit int64) (content []byte, done func(), ok bool) {
	tooLong := func() {
		fail(w, http.StatusRequestEntityTooLarge, badRequest, "", fmt.Sprintf("the body has more than %d bytes", limit))
	}
	if in.ContentLength > limit {
		tooLong()
		return nil, nil, false
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(readTimeout)) // who can't has none
	content, err := readInto(&r.bodies, http.MaxBytesReader(w, in.Body, limit), in.ContentLength)
	_ = control.SetReadDeadline(time.Time{})
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		tooLong()
	case errors.Is(err, errNoRoom):
		r.counts.full.Add(1)
		failLater(w, http.StatusTooManyRequests, tooMany, "full", err.Error(), time.Second)
	case err != nil:
		fail(w, http.StatusBadRequest, badRequest, "", "the body can't be read")
	default:
		return content, func() { r.bodies.give(int64(cap(content))) }, true
	}
	return nil, nil, false
}

// readInto reads all of something whose length was said to be so, or -1, as far as there
// is room. What it returns has taken its capacity.
func readInto(room *room, from io.Reader, length int64) (content []byte, err error) {
	size := int64(firstBytes)
	if length >= 0 {
		size = min(size, length+1)
	}
	if !room.take(size) {
		return nil, errNoRoom
	}
	content = make([]byte, 0, size)
	defer func() {
		if err != nil {
			room.give(int64(cap(content)))
		}
	}()
	for {
		n, err := from.Read(content[len(content):cap(content)])
		content = content[:len(content)+n]
		switch {
		case errors.Is(err, io.EOF):
			return content, nil
		case err != nil:
			return content, fmt.Errorf("body: %w", err)
		case len(content) < cap(content):
			continue
		}
		// What has come is as much as what is made room for.
		more := int64(cap(content))
		if length >= 0 {
			more = max(min(more, length+1-more), 1)
		}
		if !room.take(more) {
			return content, errNoRoom
		}
		grown := make([]byte, len(content), int64(cap(content))+more)
		copy(grown, content)
		content = grown
	}
}
