package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/fleet"
)

var (
	// errRefusedLate: the decode side has no room any more; the client has been told.
	errRefusedLate = errors.New("refused when the prefill was done")
	errPrefill     = errors.New("prefill")
)

// warm has an engine compute a prompt, or load it: one token is generated and thrown
// away. extra fields go with the request.
func (r *Router) warm(ctx context.Context, to fleet.Target, q *request, tokens []byte, extra []field) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer r.after(r.config.FirstByteTimeout, func() { cancel(errLate) }).Stop()
	e := r.fleet.Engine(to.Engine)
	fields := []field{{"prompt", formatIDs(tokens)}, {"max_tokens", []byte("1")}, {"temperature", []byte("0")}}
	if q.model != "" {
		fields = append(fields, field{"model", appendText(nil, q.model)})
	}
	if q.salt != "" {
		fields = append(fields, field{"cache_salt", appendText(nil, q.salt)})
	}
	content := (&body{}).with(append(fields, extra...)...)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, joinURL(e.URL, pathCompletions), bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("%w: %w", errPrefill, err)
	}
	request.Header.Set("Content-Type", "application/json")
	authorize(request.Header, e, q.authorization)
	if e.Ranks > 1 {
		request.Header.Set("X-Data-Parallel-Rank", fmt.Sprint(to.Rank))
	}
	response, err := r.transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("%w at %s: %w", errPrefill, e.Name, because(ctx, err))
	}
	defer response.Body.Close()
	said, err := io.ReadAll(io.LimitReader(response.Body, maxTokensBody))
	switch {
	case err != nil:
		return fmt.Errorf("%w at %s: %w", errPrefill, e.Name, because(ctx, err))
	case response.StatusCode == http.StatusTooManyRequests || response.StatusCode == http.StatusServiceUnavailable:
		return fmt.Errorf("%w at %s: %w: %d", errPrefill, e.Name, errOverloaded, response.StatusCode)
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("%w at %s: %w %d: %.200s", errPrefill, e.Name, errAnswered, response.StatusCode, said)
	}
	return nil
}

// errAnswered: the engine is well, and does not do this.
var errAnswered = errors.New("it answered")

// handover has the prompt computed by the prefill engine, waits until it is stored, and
// looks at the decode side anew. It says which engine failed. A request of which the
// token ids are not all that there is goes to the decode engine alone, which can compute
// prompts as well.
func (c *call) handover(ctx context.Context, out *placed) (fleet.Target, error) {
	r, q := c.router, c.request
	if q.tokens == nil || !q.whole {
		out.prefillFlight.End()
		c.note("the decode engine does the prefill: the prompt's token ids are not known, or not all that is in it")
		return fleet.Target{}, nil
	}
	// What the client wishes of the store is for the engine that stores.
	var wish []field
	if c.body.given(transferParams) {
		wish = []field{{transferParams, c.body.get(transferParams)}}
	}
	most := storedAtMost(c.body)
	if most == 0 {
		out.prefillFlight.End()
		c.note("the decode engine does the prefill: nothing is to be stored")
		return fleet.Target{}, nil
	}
	err := r.warm(out.prefillCtx, out.prefill, q, q.tokens, wish) //nolint:contextcheck // it is ctx, and ends with the engine
	if err == nil {
		out.prefillFlight.First()
	}
	out.prefillFlight.End()
	switch {
	case errors.Is(err, errAnswered):
		// What is wrong with the request the decode engine says in its own words.
		c.note(err.Error())
		return fleet.Target{}, nil
	case err != nil:
		return out.prefill, err
	}
	c.note(r.awaitStored(ctx, q, most, r.fleet.Engine(out.decode.Engine).Name))
	ok, tbt, none := r.placer.redecide(ctx, q, out, c.not)
	if none != somebody {
		if !c.passRefusal() {
			c.nobody(none)
		}
		return fleet.Target{}, errRefusedLate
	}
	if !ok {
		r.decisions.change(c.decision, func(d *Decision) { d.Refused, d.ExpectedTBT = "decode-busy", tbt.Seconds() })
		r.refuse(c.w, c.decision, decodeBusy)
		return fleet.Target{}, errRefusedLate
	}
	name := r.fleet.Engine(out.decode.Engine).Name
	r.decisions.change(c.decision, func(d *Decision) { d.Decode, d.DecodeRank, d.ExpectedTBT = name, out.decode.Rank, tbt.Seconds() })
	return fleet.Target{}, nil
}

func (c *call) note(text string) {
	c.router.decisions.change(c.decision, func(d *Decision) { d.Note = text })
}

// transferParams are what a request wishes of its engine's store.
const transferParams = "kv_transfer_params"

// storedAtMost is how many tokens of a request its wishes let be stored.
func storedAtMost(b *body) int {
	wish, err := parseBody(b.get(transferParams))
	switch {
	case err != nil: // engines take no notice of such, either
		return math.MaxInt
	case wish.isTrue("skip_save"):
		return 0
	}
	if n := wish.integer("max_offload_tokens", -1); n >= 0 {
		return n
	}
	return math.MaxInt
}

// awaitStored waits until the index says that a prompt's whole blocks, of its first
// tokens as many as are to be stored at most, can be loaded by
// an instance, no longer than the handover's timeout, and returns how that ended. Where
// no store that the instance loads from is followed nobody would say so.
func (r *Router) awaitStored(ctx context.Context, q *request, most int, instance string) string {
	began := time.Now()
	told, everybody := r.placer.catalog.services(began).tells(q, instance)
	if !told {
		return "it was not waited for: no store's events are followed"
	}
	block := max(r.prefixOf(q, q.tokens).BlockTokens, 1)
	want := min(q.count-1, most) / block * block
	patience, cancel := context.WithTimeout(ctx, r.config.HandoverTimeout)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 16*time.Millisecond) {
		if loadable(r.placer.catalog.holdings(q, time.Now()), instance, everybody) >= want {
			return fmt.Sprintf("stored; it was waited for %v", time.Since(began).Round(time.Microsecond))
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-patience.Done():
			timer.Stop()
			if ctx.Err() == nil {
				r.counts.handoversLate.Add(1)
			}
			return fmt.Sprintf("not known to be stored; it was waited for %v", time.Since(began).Round(time.Microsecond))
		}
	}
}

// loadable is how many tokens an instance need not compute. Of one that the index does
// not know, what all can load is what any other can.
func loadable(held map[rankName]holding, instance string, everybody bool) int {
	own, others, known := 0, 0, false
	for at, h := range held {
		if at.instance == instance {
			own, known = max(own, h.local, h.stored), true
		}
		others = max(others, h.stored)
	}
	if known || !everybody {
		return own
	}
	return others
}
