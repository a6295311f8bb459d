package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/fleet"
	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

// complete proxies a request whose prompt is understood.
func (r *Router) complete(w http.ResponseWriter, in *http.Request) {
	began := time.Now()
	wish, b, leave, ok := admit(r, w, in, r.config.MaxBodyBytes, r.readObject)
	if !ok {
		return
	}
	defer leave()
	if wish.context != "" {
		var done func()
		if b, done, ok = r.expand(w, in.URL.Path, b, &wish, began); !ok {
			return
		}
		defer done()
	}
	q := &request{wishes: wish, authorization: in.Header.Get("Authorization")}
	q.describe(in.URL.Path, b)
	exact := r.tokens(in.Context(), q, b, r.waitForTokens())
	c := &call{router: r, w: w, in: in, request: q, body: b, began: began, exact: exact}
	c.run(in.Context())
}

// admit reads what a request wishes and, by read, its body of at most limit bytes, and waits for a place for it. Without
// ok the client has its answer. REQUIRES: leave is called once nothing needs place or body any more.
func admit[B any](r *Router, w http.ResponseWriter, in *http.Request, limit int64,
	read func(http.ResponseWriter, *http.Request, int64) (B, func(), bool),
) (wish wishes, body B, leave func(), ok bool) {
	wish, err := wishesOf(in.Header, &r.config)
	if err != nil {
		fail(w, http.StatusBadRequest, badRequest, "", err.Error())
		return wish, body, nil, false
	}
	// The body is read first: only then is it known of a client that it leaves.
	body, done, ok := read(w, in, limit)
	if !ok {
		return wish, body, nil, false
	}
	wish.arrived = time.Now()
	if !r.enter(w, in.Context(), wish.priority) {
		done()
		return wish, body, nil, false
	}
	return wish, body, func() { r.gate.leave(); done() }, true
}

// enter waits for a place among the requests that are under way.
func (r *Router) enter(w http.ResponseWriter, ctx context.Context, priority int) bool { //nolint:revive // as handlers have it
	err := r.gate.enter(ctx, priority)
	switch {
	case err == nil:
		return true
	case errors.Is(err, errFull):
		r.counts.full.Add(1)
		failLater(w, http.StatusTooManyRequests, tooMany, "full", "as many requests wait as may", time.Second)
	}
	return false
}

// waitForTokens is how long a request waits for its token ids. With prefill and decode
// apart more depends on them.
func (r *Router) waitForTokens() time.Duration {
	for i := range r.fleet.Len() {
		if r.fleet.Engine(i).Role == fleet.Decode {
			return max(r.config.TokenizeTimeout, r.config.HandoverTimeout)
		}
	}
	return r.config.TokenizeTimeout
}

// tokens finds out a request's token ids, and whether they are exactly what the engine
// would make of it.
func (r *Router) tokens(ctx context.Context, q *request, b *body, wait time.Duration) (exact bool) {
	q.base, q.lora = q.model, ""
	m, ok := r.fleet.Model(q.model)
	if ok && m.Parent != "" {
		q.base, q.lora = m.Parent, m.ID
	}
	defer q.hash(r.placer.seed)
	if q.tokens == nil {
		if err := r.askFor(ctx, q, b, wait); err != nil {
			q.why = err.Error()
			return false
		}
	}
	return !q.truncated(b, m.MaxTokens) && q.whole
}

// askFor has an engine asked for a request's token ids.
func (r *Router) askFor(ctx context.Context, q *request, b *body, wait time.Duration) error {
	question, err := questionOf(q.path, b)
	if err != nil {
		return err
	}
	q.whole = q.path != pathChat || !hasMedia(b.get("messages"))
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	ids, err := r.tokenizer.ids(ctx, q.model, question, q.authorization)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return errNoTokens
	}
	q.setTokens(ids)
	return nil
}

// call is one request on its way.
type call struct {
	router   *Router
	w        http.ResponseWriter
	in       *http.Request
	request  *request
	body     *body
	exact    bool
	began    time.Time
	decision *Decision
	// not are the engines that failed it.
	not []int
	// said is what the last one said that takes no more requests, for when nobody else does.
	said *refusal
}

// run sends the request until an engine answers.
func (c *call) run(ctx context.Context) {
	r := c.router
	for attempt := 1; ; attempt++ {
		out, none := r.placer.place(ctx, c.request, choice{not: c.not})
		if none != somebody {
			if !c.passRefusal() {
				c.nobody(none)
			}
			return
		}
		c.decided(out.decision)
		if out.refused != scheduler.Accepted {
			r.refuse(c.w, c.decision, out.refused)
			return
		}
		r.order(out.copy)
		if attempt == 1 {
			r.observer.sent(c.request.arrived)
		}
		a, to, err := c.attempt(ctx, &out)
		switch {
		case err == nil && a == nil: // it was refused at the second check
			return
		case err == nil:
			c.pass(a, &out)
			return
		case ctx.Err() != nil:
			out.end()
			c.over(0, errClient)
			r.counts.left.Add(1)
			return
		}
		out.end()
		r.failed(to, err)
		r.counts.retries.Add(1)
		c.not = append(c.not, to.Engine)
		name := r.fleet.Engine(to.Engine).Name
		r.decisions.change(c.decision, func(d *Decision) { d.Attempts = append(d.Attempts, Attempt{name, err.Error()}) })
		if attempt == r.config.Attempts {
			if c.passRefusal() {
				return
			}
			c.over(http.StatusBadGateway, err)
			fail(c.w, http.StatusBadGateway, badGateway, "", fmt.Sprintf("no engine answered, of %d that were asked", attempt))
			return
		}
	}
}

// end takes what was counted in off.
func (p *placed) end() {
	p.flight.End()
	if p.prefillFlight != nil {
		p.prefillFlight.End()
	}
}

// attempt sends the request where it was placed. It says which engine failed. What an
// overloaded engine says is kept.
func (c *call) attempt(ctx context.Context, out *placed) (*answer, fleet.Target, error) {
	if out.apart {
		if to, err := c.handover(ctx, out); err != nil {
			if errors.Is(err, errRefusedLate) {
				return nil, to, nil
			}
			return nil, to, err
		}
	}
	a, err := c.router.send(out.ctx, out.decode, c.in, c.content(out), c.request.streamed) //nolint:contextcheck // it is ctx, and ends with the engine
	if err != nil {
		return nil, out.decode, err
	}
	if status := a.response.StatusCode; status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable || status == http.StatusBadGateway {
		if said := refusalOf(a, c.router.fleet.Engine(out.decode.Engine).Name); said != nil {
			c.said = said
		}
		c.router.release(a)
		return nil, out.decode, fmt.Errorf("%w: %d", errOverloaded, status)
	}
	return a, out.decode, nil
}

// content is what the engine is sent: the client's bytes, unless something has to be put
// in.
func (c *call) content(out *placed) []byte {
	var changes []field
	// Without a model's name another engine's tokenizer may have been asked.
	if c.router.config.SendTokens && c.exact && c.request.model != "" && c.request.path == pathCompletions && !c.body.given("echo") && !c.body.isTrue("return_prompt_text") && c.body.get("prompt")[0] == '"' {
		changes = append(changes, field{"prompt", formatIDs(c.request.tokens)})
	}
	if c.router.config.SendPriority && c.request.understood() && !c.body.given("priority") {
		changes = append(changes, field{"priority", strconv.AppendInt(nil, int64(out.priority), 10)})
	}
	if changes == nil {
		return c.body.raw
	}
	return c.body.with(changes...)
}

// pass passes an answer on and takes account of it.
func (c *call) pass(a *answer, out *placed) {
	r := c.router
	defer r.release(a)
	defer out.end()
	h := c.w.Header()
	h.Set(headerEngine, r.fleet.Engine(out.decode.Engine).Name)
	h.Set(headerDecision, strconv.FormatUint(c.decision.ID, 10))
	if c.request.tokens != nil {
		h.Set(headerCached, strconv.Itoa(c.decision.CachedTokens))
	}
	events := isEvents(a.response.Header) && a.response.StatusCode == http.StatusOK
	if !events && out.flight != nil && a.response.StatusCode != http.StatusOK {
		out.flight.End() // an error teaches nothing
	}
	first := true
	err := r.copyAnswer(c.w, a, func(part []byte) {
		n := 1
		if events {
			n = bytes.Count(part, []byte("data:"))
		}
		if first {
			first = false
			out.flight.First()
			ttft := time.Since(c.began)
			if events {
				r.observer.firstToken(ttft)
			}
			r.decisions.change(c.decision, func(d *Decision) { d.TookTTFT = ttft.Seconds() })
			return
		}
		if events {
			out.flight.Tokens(n)
		}
	})
	c.over(a.response.StatusCode, err)
	switch {
	case err == nil:
	case errors.Is(err, errClient), c.in.Context().Err() != nil:
		r.counts.left.Add(1)
	default:
		r.counts.broken.Add(1)
		r.failed(out.decode, err)
		panic(http.ErrAbortHandler) // net/http breaks the connection off
	}
}

// decided takes note of a decision. Of a request that is sent again the first keeps its
// number and has the later one's content.
func (c *call) decided(made *Decision) {
	if c.decision == nil {
		c.decision = made
		c.router.decisions.add(made)
		return
	}
	c.router.decisions.change(c.decision, func(d *Decision) {
		made.ID, made.Attempts = d.ID, d.Attempts
		*d = *made
	})
}

// over takes note of how it ended.
func (c *call) over(status int, err error) {
	if c.decision == nil {
		return
	}
	took := time.Since(c.began).Seconds()
	c.router.decisions.change(c.decision, func(d *Decision) {
		d.Status, d.Took = status, took
		if err != nil && !errors.Is(err, io.EOF) {
			d.Failed = err.Error()
		}
	})
}

// nobody answers that there is no engine.
func (c *call) nobody(why nobody) {
	c.over(http.StatusServiceUnavailable, nil)
	c.router.nobody(c.w, why, c.request.model)
}

func (r *Router) nobody(w http.ResponseWriter, why nobody, model string) {
	if why == noneServes {
		r.counts.unserved.Add(1)
		fail(w, http.StatusNotFound, notFound, "", fmt.Sprintf("the model %.200q does not exist", model))
		return
	}
	r.counts.nobody.Add(1)
	failLater(w, http.StatusServiceUnavailable, unavailable, "no-engine", "no engine is in use", 2*time.Second)
}

// refuse answers a request that the scheduler refused, and says when it may fit.
func (r *Router) refuse(w http.ResponseWriter, d *Decision, why scheduler.Reason) {
	r.counts.refused(why)
	later := time.Second
	if why == scheduler.LateFirstToken {
		later = time.Duration((d.Expected - d.TTFT) * float64(time.Second))
	}
	w.Header().Set(headerDecision, strconv.FormatUint(d.ID, 10))
	r.decisions.change(d, func(d *Decision) { d.Status = http.StatusTooManyRequests })
	failLater(w, http.StatusTooManyRequests, tooMany, why.String(), "the request's objectives can't be met now", later)
}
