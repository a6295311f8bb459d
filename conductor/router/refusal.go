package router

import (
	"io"
	"net/http"
	"strconv"
	"time"
)

// refusal is the whole answer of an engine that takes no more requests. It outlives the
// attempt, so that the client hears it if nobody else answers.
type refusal struct {
	engine  string
	status  int
	header  http.Header
	content []byte
}

// Limits of what is kept of a refusal: such answers are a few words.
const (
	maxRefusal     = 64 << 10
	refusalTimeout = 5 * time.Second
)

// refusalOf reads what is left of an answer; nil if that is too much or takes too long.
func refusalOf(a *answer, engine string) *refusal {
	content := append([]byte(nil), a.first...)
	if !a.ended {
		timer := time.AfterFunc(refusalTimeout, a.stop)
		defer timer.Stop()
		rest, err := io.ReadAll(io.LimitReader(a.response.Body, maxRefusal+1))
		if content = append(content, rest...); err != nil || len(content) > maxRefusal {
			return nil
		}
	}
	return &refusal{engine, a.response.StatusCode, a.response.Header, content}
}

// passRefusal answers with what the last overloaded engine said, if one did.
func (c *call) passRefusal() bool {
	if c.said == nil {
		return false
	}
	h := c.w.Header()
	for name, values := range c.said.header {
		h[name] = values
	}
	dropHopByHop(h)
	h.Set(headerEngine, c.said.engine)
	h.Set(headerDecision, strconv.FormatUint(c.decision.ID, 10))
	h.Set("Content-Length", strconv.Itoa(len(c.said.content)))
	if h.Get("Retry-After") == "" {
		h.Set("Retry-After", "1")
	}
	c.over(c.said.status, nil)
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(c.router.config.WriteTimeout)) // who can't has none
	c.w.WriteHeader(c.said.status)
	_, _ = c.w.Write(c.said.content) // whoever has gone does not read it
	return true
}
