package worker

import (
	"errors"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// storing is a store under way.
type storing struct {
	n     *session
	j     *job
	items []storeItem
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
	reason   string // of the first item that failed
	times    times
}

// runStore does a store: room first, then copies, then publication. The
// request's saved length advances up to the first chunk that is missing: a hole
// makes all behind it useless, so the next job of the request tries from there.
func (n *session) runStore(j *job) *connector.Result {
	n.ledgerMu.Lock()
	start, current := n.ledger.Offset(j.id)
	n.ledgerMu.Unlock()
	if !current {
		return &connector.Result{Status: connector.StatusDropped, Reason: reasonRetired}
	}
	items, end, err := n.rank.planStore(j.store, start)
	if err != nil {
		n.srv.stats.malformed.Add(1)
		n.srv.cfg.Log.Warn("store refused", "job", j.id, "error", err)
		return &connector.Result{Status: connector.StatusFailed, Reason: reasonMalformed}
	}
	s := &storing{n: n, j: j, items: items, tickets: make([]uint64, len(items)), open: make([]bool, len(items)), missing: make([]bool, len(items))}
	err = s.run()
	s.revoke()
	if saved := s.saved(start, end, err); saved > start {
		n.ledgerMu.Lock()
		n.ledger.Advance(j.id, saved)
		n.ledgerMu.Unlock()
	}
	return s.result(err)
}

func (s *storing) run() error {
	if len(s.items) == 0 {
		return nil
	}
	if s.n.isCancelled(s.j) {
		return errCancelled
	}
	s.times.begin()
	copies, at, err := s.start()
	s.times.answered(len(s.items))
	if err != nil {
		return err
	}
	defer s.times.moved()
	if err := s.n.copyAll(s.j, Store, copies, nil); err != nil {
		return err
	}
	// The last look: between the copies and here the engine may have given the
	// blocks up, and only its word says what the bytes were.
	if s.n.isCancelled(s.j) {
		return errCancelled
	}
	if err := s.publish(copies, at); err != nil {
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

// start asks for room. It returns the copies to make and the item of each.
func (s *storing) start() (copies []ShardCopy, at []int, err error) {
	for from := 0; from < len(s.items); from += maxCall {
		to := min(from+maxCall, len(s.items))
		grants, err := s.startPart(from, to)
		if err != nil {
			return nil, nil, err
		}
		segments := s.n.srv.cfg.Store.Segments()
		for i := from; i < to; i++ {
			g := grants[i-from]
			switch g.Status {
			case store.PutGranted:
				s.tickets[i], s.open[i], s.missing[i] = g.Ticket, true, true
			case store.PutExists:
				s.existing++
				continue
			case store.PutUnderway:
				// It may come to nothing: the request's next job asks again.
				s.missing[i] = true
				s.underway = append(s.underway, i)
				continue
			case store.PutNoSpace:
				s.fail(i, reasonNoSpace)
				continue
			default:
				s.fail(i, reasonRefused)
				continue
			}
			it := &s.items[i]
			memory, err := memoryOf(segments, g.Place, s.n.rank.groups[it.put.Group].shardBytes)
			if err != nil {
				return nil, nil, err
			}
			group := int(it.put.Group)
			copies = append(copies, ShardCopy{Group: group, Shard: s.n.rank.local(group, it.put.Shard), BlockID: it.block, Memory: memory})
			at = append(at, i)
		}
	}
	return copies, at, nil
}

// startPart asks for room under the name that the namespace had when the job
// arrived, and no other: what was computed before a reset must not be stored
// after it.
func (s *storing) startPart(from, to int) (grants []store.PutGrant, err error) {
	s.j.loop.Beat()
	request := make([]store.PutItem, to-from)
	for i := range request {
		request[i] = s.items[from+i].put
	}
	ctx, cancel := s.n.srv.storeContext()
	defer cancel()
	if !s.j.named {
		if s.j.namespace, err = s.n.namespace.open(ctx); err != nil {
			return nil, err
		}
		s.j.named = true
	}
	s.ns = s.j.namespace
	grants, err = s.n.srv.cfg.Store.PutStart(ctx, s.ns, s.j.store.SaltTag, request)
	if errors.Is(err, store.ErrStaleNamespace) {
		return nil, errors.Join(err, s.n.namespace.renew(ctx, s.ns))
	}
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

// publish ends the puts.
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

// saved returns the length up to which the request is saved now.
func (s *storing) saved(start, end int, err error) int {
	if err != nil && s.stored == 0 {
		return start
	}
	hole := end
	for i, missing := range s.missing {
		if missing && s.items[i].from >= 0 {
			hole = min(hole, s.items[i].from)
		}
	}
	l := s.n.rank.spec.SchedulerBlockTokens
	return max(start, hole/l*l)
}

func (s *storing) result(err error) *connector.Result {
	r := &connector.Result{Status: connector.StatusOK, Chunks: s.stored, Existing: s.existing, Bytes: s.bytes}
	s.times.fill(r)
	switch {
	case errors.Is(err, errCancelled):
		r.Status, r.Reason = connector.StatusCancelled, reasonCancelled
	case err != nil:
		r.Status, r.Reason = connector.StatusFailed, reasonOf(err)
		if r.Reason == reasonNoStore && s.stored == 0 {
			r.Status = connector.StatusDropped
		}
		s.n.srv.cfg.Log.Debug("store failed", "job", s.j.id, "req_id", s.j.store.Request, "error", err)
	case s.reason != "":
		r.Status, r.Reason = connector.StatusFailed, s.reason
	}
	return r
}
