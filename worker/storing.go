package worker

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// storing is a store under way.
type storing struct {
	n     *session
	j     *job
	items []storeItem
	parts []storePart
	ns    store.Namespace
	// tickets are the granted puts that are neither ended nor revoked, by item;
	// 0 for none. Ticket 0 is told apart by open.
	tickets []uint64
	open    []bool
	// missing marks the items that are not in the store, underway lists those that
	// an open put brings, which may be one of ours.
	missing  []bool
	underway []int
	stored   int
	existing int
	bytes    int64
	reason   string // of the first item or part that failed
	times    times
}

// storePart is one request's part of the job.
type storePart struct {
	from, to   int // its items
	start, end int // the request's saved length, before and when all is stored
	failed     bool
}

// runStore does a store, of all parts at once: room first, then batch by batch
// copies and publication, so that a large job that fails, or is given up, keeps
// what it has got to; a small one is a single batch. A request's saved length advances up to the first chunk that is
// missing: a hole makes all behind it useless, so the next job of the request
// tries from there.
func (n *session) runStore(j *job) *connector.Result {
	s := &storing{n: n, j: j, parts: make([]storePart, len(j.store.Parts))}
	for i := range s.parts {
		s.plan(i)
	}
	s.tickets, s.open, s.missing = make([]uint64, len(s.items)), make([]bool, len(s.items)), make([]bool, len(s.items))
	err := s.run()
	s.revoke()
	return s.result(err, s.advance(err))
}

// plan lists what a part saves. A part that is void or makes no sense fails by
// itself: the others are of other requests.
func (s *storing) plan(i int) {
	p, n := &s.parts[i], s.n
	p.from, p.to = len(s.items), len(s.items)
	n.ledgerMu.Lock()
	start, current := n.ledger.Offset(s.j.part(i))
	n.ledgerMu.Unlock()
	if !current {
		s.failPart(p, reasonRetired)
		return
	}
	items, end, err := n.rank.planStore(&s.j.store.Parts[i], start)
	if err != nil {
		n.srv.stats.malformed.Add(1)
		n.srv.cfg.Log.Warn("store refused", "job", s.j.id, "req_id", s.j.store.Parts[i].Request, "error", err)
		s.failPart(p, reasonMalformed)
		return
	}
	s.items = append(s.items, items...)
	p.to, p.start, p.end = len(s.items), start, end
}

func (s *storing) failPart(p *storePart, reason string) {
	p.failed = true
	if s.reason == "" {
		s.reason = reason
	}
}

func (s *storing) run() error {
	if len(s.items) == 0 {
		return nil
	}
	if s.n.isCancelled(s.j) {
		return errCancelled
	}
	all := make([]int, len(s.items))
	for i := range all {
		all[i] = i
	}
	copies, at, err := s.start(all)
	if err != nil {
		return err
	}
	if copies, at, err = s.awaitFinal(copies, at); err != nil {
		return err
	}
	defer func() { s.times.moved(s.j.waited) }()
	if err := s.copyAll(copies, at); err != nil {
		return err
	}
	s.settle()
	return nil
}

// settle finds the items that were underway by a put of this very job, which is
// published: a block may be saved as a chunk and as a boundary.
func (s *storing) settle() {
	if len(s.underway) == 0 {
		return
	}
	type key struct {
		group, shard uint32
		hash         kv.Hash
	}
	of := func(put *store.PutItem) key { return key{put.Group, put.Shard, put.Hash} }
	here := map[key]bool{}
	for i, missing := range s.missing {
		if !missing {
			here[of(&s.items[i].put)] = true
		}
	}
	for _, i := range s.underway {
		if here[of(&s.items[i].put)] {
			s.missing[i] = false
			s.existing++
		} else {
			s.fail(i, reasonUnderway)
		}
	}
}

// start asks for room for items when no load is under way, which may ask the store as
// well. It returns the copies to make and the item of each.
func (s *storing) start(items []int) (copies []ShardCopy, at []int, err error) {
	if !s.n.queue.await(s.j, 0) {
		return nil, nil, errCancelled
	}
	defer s.n.queue.done(s.j)
	s.times.begin()
	defer func() { s.times.answered(len(s.items), s.j.waited) }()
	for len(items) > 0 {
		opts, n := s.call(items)
		grants, err := s.startPart(opts, items[:n])
		if err != nil {
			return nil, nil, err
		}
		segments := s.n.srv.cfg.Store.Segments()
		for k, i := range items[:n] {
			if !s.granted(i, grants[k]) {
				continue
			}
			it := &s.items[i]
			memory, err := memoryOf(segments, grants[k].Place, s.n.rank.groups[it.put.Group].shardBytes)
			if err != nil { // its ticket stays open, and is revoked
				s.fail(i, reasonBadPlace)
				s.n.srv.cfg.Log.Warn("place refused", "job", s.j.id, "error", err)
				continue
			}
			group := int(it.put.Group)
			copies = append(copies, ShardCopy{Group: group, Shard: s.n.rank.local(group, it.put.Shard), BlockID: it.block, Memory: memory})
			at = append(at, i)
		}
		items = items[n:]
	}
	return copies, at, nil
}

// call returns how many of the items one call may put: those of parts with the same
// label, as many as a message takes.
//
// REQUIRES: the items are in order.
func (s *storing) call(items []int) (opts store.PutOptions, n int) {
	first := slices.IndexFunc(s.parts, func(p storePart) bool { return items[0] < p.to })
	label := s.j.store.Parts[first].Label
	to := 0
	for i := first; i < len(s.parts) && s.j.store.Parts[i].Label == label; i++ {
		to = s.parts[i].to
	}
	n, _ = slices.BinarySearch(items, to)
	return store.PutOptions{
		SaltTag: label.SaltTag, TTL: time.Duration(label.TTLSeconds) * time.Second, Pin: store.Pin(label.Pin),
	}, min(n, maxCall)
}

// granted notes the answer to an item; whether there is a copy to make.
func (s *storing) granted(i int, g store.PutGrant) bool {
	switch g.Status {
	case store.PutGranted:
		s.tickets[i], s.open[i], s.missing[i] = g.Ticket, true, true
		return true
	case store.PutExists:
		s.missing[i] = false
		s.existing++
	case store.PutUnderway:
		// It may come to nothing: the request's next job asks again.
		s.missing[i] = true
		s.underway = append(s.underway, i)
	case store.PutNoSpace:
		s.fail(i, reasonNoSpace)
	default:
		s.fail(i, reasonRefused)
	}
	return false
}

// startPart asks for room in the generation of the namespace that the job names,
// and in no other: what was computed before a reset must not be stored after it.
func (s *storing) startPart(opts store.PutOptions, items []int) (grants []store.PutGrant, err error) {
	s.j.loop.Beat()
	request := make([]store.PutItem, len(items))
	for k, i := range items {
		request[k] = s.items[i].put
	}
	ctx, cancel := s.n.srv.storeContext()
	defer cancel()
	if s.ns, err = s.n.namespace.of(ctx, s.j.store.Generation); err != nil {
		return nil, err
	}
	grants, err = s.n.srv.cfg.Store.PutStart(ctx, s.ns, opts, request)
	if err != nil {
		return nil, err
	}
	for len(grants) < len(request) { // a short answer is a refusal
		grants = append(grants, store.PutGrant{Status: store.PutRefused})
	}
	return grants, nil
}

func (s *storing) fail(i int, reason string) {
	s.missing[i] = true
	if s.reason == "" {
		s.reason = reason
	}
}

// publish ends the puts of what was copied.
func (s *storing) publish(copies []ShardCopy, at []int) error {
	for from := 0; from < len(copies); from += maxCall {
		s.j.loop.Beat()
		to := min(from+maxCall, len(copies))
		commits := make([]store.PutCommit, to-from)
		for k := range commits {
			commits[k] = store.PutCommit{Ticket: s.tickets[at[from+k]], Checksum: copies[from+k].Checksum}
		}
		ctx, cancel := s.n.srv.storeContext()
		published, err := s.n.srv.cfg.Store.PutEnd(ctx, s.ns, commits)
		cancel()
		if err != nil {
			return err // they are revoked: a put that was ended ignores it
		}
		for k := range commits {
			i := at[from+k]
			s.open[i] = false
			if k >= len(published) || !published[k] {
				s.fail(i, reasonVoid)
				continue
			}
			s.missing[i] = false
			s.stored++
			s.bytes += int64(len(copies[from+k].Memory))
		}
	}
	return nil
}

// revoke gives back the room that came to nothing.
func (s *storing) revoke() {
	var tickets []uint64
	for i, open := range s.open {
		if open {
			tickets = append(tickets, s.tickets[i])
		}
	}
	s.n.srv.cleaner.revoke(s.ns, tickets)
}

// advance moves the requests' saved lengths on. It returns the numbers of the
// parts that are not saved without a hole.
func (s *storing) advance(err error) (incomplete []byte) {
	s.n.ledgerMu.Lock()
	defer s.n.ledgerMu.Unlock()
	for i := range s.parts {
		p := &s.parts[i]
		saved := p.start
		if !p.failed {
			saved = s.saved(p, err)
		}
		if saved > p.start {
			s.n.ledger.Advance(s.j.part(i), saved)
		}
		if p.failed || saved < p.end || s.lacksBoundary(p) || err != nil && p.to > p.from {
			incomplete = binary.LittleEndian.AppendUint32(incomplete, uint32(i))
		}
	}
	return incomplete
}

// saved returns the length up to which a part's request is saved now.
func (s *storing) saved(p *storePart, err error) int {
	if err != nil && s.stored == 0 {
		return p.start
	}
	hole := p.end
	for i := p.from; i < p.to; i++ {
		if s.missing[i] && s.items[i].from >= 0 {
			hole = min(hole, s.items[i].from)
		}
	}
	l := s.n.rank.spec.SchedulerBlockTokens
	return max(p.start, hole/l*l)
}

// lacksBoundary reports whether some boundary put of the part is missing.
func (s *storing) lacksBoundary(p *storePart) bool {
	for i := p.from; i < p.to; i++ {
		if s.missing[i] && s.items[i].from < 0 {
			return true
		}
	}
	return false
}

func (s *storing) result(err error, incomplete []byte) *connector.Result {
	r := &connector.Result{
		Status: connector.StatusOK, Incomplete: incomplete, Chunks: s.stored, Existing: s.existing, Bytes: s.bytes,
	}
	s.times.fill(r)
	switch {
	case errors.Is(err, errCancelled):
		r.Status, r.Reason = connector.StatusCancelled, reasonCancelled
	case err != nil:
		r.Status, r.Reason = connector.StatusFailed, reasonOf(err)
		if r.Reason == reasonNoStore && s.stored == 0 {
			r.Status = connector.StatusDropped
		}
		s.n.srv.cfg.Log.Debug("store failed", "job", s.j.id, "error", err)
	case s.reason != "":
		r.Status, r.Reason = connector.StatusFailed, s.reason
		if s.reason == reasonRetired && len(s.items) == 0 && len(incomplete) == 4*len(s.parts) {
			r.Status = connector.StatusDropped
		}
	}
	return r
}
