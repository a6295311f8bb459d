package router

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/scheduler"
)

const decodeBusy = scheduler.DecodeBusy

// reservations are decisions of which a gateway will say what became of them. Each is
// counted as in flight until then, or until its time is over.
type reservations struct {
	most int

	mu  sync.Mutex
	all map[uint64]reservation
}

type reservation struct {
	placed *placed
	until  time.Time
}

// take returns a reservation; last: and ends it.
func (r *reservations) take(id uint64, last bool) (*placed, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found, ok := r.all[id]
	if last {
		delete(r.all, id)
	}
	return found.placed, ok
}

func (r *reservations) add(id uint64, p *placed, until time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) >= r.most {
		return false
	}
	r.all[id] = reservation{p, until}
	return true
}

// expire ends those whose time is over.
func (r *reservations) expire(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, one := range r.all {
		if one.until.Before(now) {
			delete(r.all, id)
			one.placed.end()
		}
	}
}

// scheduled is the answer of POST /schedule.
type scheduled struct {
	*Decision
	PrefillURL string `json:"prefill_url,omitempty"`
	DecodeURL  string `json:"decode_url,omitempty"`
	// Priority is what an engine that orders its queue by priority is to be told.
	Priority int `json:"priority"`
	// Reserved: it is counted as in flight until it is reported.
	Reserved bool `json:"reserved"`
}

// schedule answers POST /schedule: where a request would best go. Its body is the
// request's, or has token_ids in place of the prompt; with "reserve": true it is counted
// as in flight.
func (r *Router) schedule(w http.ResponseWriter, in *http.Request) {
	wish, b, leave, ok := admit(r, w, in, r.config.MaxBodyBytes, r.readObject)
	if !ok {
		return
	}
	defer leave()
	path := pathCompletions
	if b.given("messages") {
		path = pathChat
	}
	q := &request{wishes: wish, authorization: in.Header.Get("Authorization")}
	q.describe(path, b)
	if b.given("token_ids") {
		ids, err := parseIDs(b.get("token_ids"))
		if err != nil {
			fail(w, http.StatusBadRequest, badRequest, "", "token_ids: "+err.Error())
			return
		}
		q.setTokens(ids)
	}
	r.tokens(in.Context(), q, b, r.waitForTokens())
	reserve := b.isTrue("reserve")
	among := choice{dry: !reserve}
	if b.given("engines") {
		var err error
		if among.only, err = parseNames(b.get("engines")); err != nil {
			fail(w, http.StatusBadRequest, badRequest, "", "engines: "+err.Error())
			return
		}
	}
	out, none := r.placer.place(r.lifetime, q, among) //nolint:contextcheck // a reservation outlives this request
	if none != somebody {
		r.nobody(w, none, q.model)
		return
	}
	r.decisions.add(out.decision)
	if out.refused != scheduler.Accepted {
		r.refuse(w, out.decision, out.refused)
		return
	}
	if reserve {
		reserve = r.reservations.add(out.decision.ID, &out, time.Now().Add(r.config.ReservationTTL))
		if !reserve {
			out.end()
		}
	}
	r.order(out.copy)
	answer := scheduled{PrefillURL: r.fleet.Engine(out.prefill.Engine).URL, DecodeURL: r.fleet.Engine(out.decode.Engine).URL, Priority: out.priority, Reserved: reserve}
	r.decisions.change(out.decision, func(d *Decision) {
		copied := *d
		answer.Decision = &copied
	})
	writeJSON(w, http.StatusOK, answer)
}

var errNames = errors.New("want a list of names")

// parseNames reads a list of strings.
func parseNames(raw []byte) ([]string, error) {
	s := scanner{raw: raw}
	if !s.take('[') {
		return nil, errNames
	}
	var names []string
	for !s.take(']') {
		if len(names) > 0 && !s.take(',') || len(names) == maxFields {
			return nil, errNames
		}
		value := s.value()
		name := (&body{fields: []field{{"", value}}}).text("")
		if name == "" {
			return nil, errNames
		}
		names = append(names, name)
	}
	return names, nil
}

// report answers POST /schedule/{id}/{event}: what became of a reservation.
func (r *Router) report(w http.ResponseWriter, in *http.Request) {
	id, err := strconv.ParseUint(in.PathValue("id"), 10, 64)
	event := in.PathValue("event")
	if events := []string{"first_token", "done"}; err != nil || !slices.Contains(events, event) {
		fail(w, http.StatusNotFound, notFound, "", fmt.Sprintf("want /schedule/<id>/<one of %v>", events))
		return
	}
	p, ok := r.reservations.take(id, event == "done")
	if !ok {
		fail(w, http.StatusNotFound, notFound, "", "there is no such reservation, or its time is over")
		return
	}
	if event == "done" {
		p.end()
	} else {
		if p.prefillFlight != nil {
			p.prefillFlight.First()
			p.prefillFlight.End()
		}
		p.flight.First()
		ttft := time.Since(p.decision.At).Seconds()
		r.decisions.change(p.decision, func(d *Decision) { d.TookTTFT = ttft })
	}
	writeJSON(w, http.StatusOK, map[string]any{"id": id, "event": event})
}
