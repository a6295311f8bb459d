package worker

import (
	"context"
	"errors"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/store"
)

// load is a load under way.
type load struct {
	n     *session
	j     *job
	items []loadItem
	got   []store.GetResult // by item; the zero value for one not asked
	from  store.Namespace   // that they were got from
	// copied is how many items, from the first on, were copied, or begun to be.
	copied int
	// loaded marks the items whose block holds verified bytes.
	loaded []bool
	failed []store.FailedChunk // for the store
	bytes  int64
	times  times
}

// runLoad does a load: references first, then copies, then what failed. Every
// planned block that was not positively loaded is in the result.
func (n *session) runLoad(j *job) *connector.Result {
	items, err := n.rank.planLoad(j.load)
	if err != nil {
		n.srv.stats.malformed.Add(1)
		n.srv.cfg.Log.Warn("load refused", "job", j.id, "error", err)
		return &connector.Result{Status: connector.StatusFailed, Reason: reasonMalformed}
	}
	l := &load{n: n, j: j, items: items, got: make([]store.GetResult, len(items)), loaded: make([]bool, len(items))}
	err = l.run()
	l.giveBack()
	return l.result(err)
}

// run takes references and copies. All of what is there is referenced before the
// first copy, so that what is behind can't be evicted while what is in front is
// copied; what a slower tier has yet to bring is asked for again, and what came
// first is copied meanwhile. The first chunk that is gone ends the load: what a
// prefix lacks makes all behind it useless.
func (l *load) run() error {
	if len(l.items) == 0 {
		return nil
	}
	if l.n.isCancelled(l.j) {
		return errCancelled
	}
	l.times.begin()
	err := l.getAll()
	l.times.answered(len(l.items), l.j.waited)
	if err != nil {
		return err
	}
	defer func() { l.times.moved(l.j.waited) }()
	defer l.failAbsent()
	return l.copyTo(l.ready())
}

// getAll asks until the store has answered for every item.
func (l *load) getAll() error {
	asked := make([]int, len(l.items))
	for i := range asked {
		asked[i] = i
	}
	for begun := time.Now(); ; {
		asking := time.Now()
		loading, err := l.get(asked)
		if err != nil || len(loading) == 0 {
			return err
		}
		asked = loading
		if to := l.ready(); to > l.copied {
			l.times.answered(len(l.items), l.j.waited)
			err := l.copyTo(to)
			if l.times.moved(l.j.waited); err != nil {
				return err
			}
			continue
		}
		// A slower tier takes its time; the engine's deadline bounds it.
		now := time.Now()
		last := asked[len(asked)-1]
		l.n.queue.aside(l.j, nextAsk(now.Sub(begun), now.Sub(asking)), func(atMost time.Duration) { l.await(last, atMost) })
		if l.n.isCancelled(l.j) {
			return errCancelled
		}
	}
}

// await waits until an item is not on its way any more, or so long. It is the last of
// those that are: of a long load some come meanwhile, and are copied when the time is
// over; of a short one all come at once, and the load goes on at that moment.
func (l *load) await(item int, atMost time.Duration) {
	begun := time.Now()
	chunk := store.ChunkKey{Group: uint32(l.items[item].group), Hash: l.items[item].hash}
	ctx, cancel := context.WithTimeout(l.j.ctx, atMost+l.n.srv.cfg.StoreTimeout)
	defer cancel()
	if err := l.n.srv.cfg.Store.AwaitArrival(ctx, l.from, chunk, atMost); err != nil { // the next question tells why
		pause(l.j.ctx, atMost-time.Since(begun))
	}
}

// nextAsk returns how long a load waits at most before it asks again for what is on its
// way, when it has taken so long and the last question so much of that: what has come
// meanwhile is not copied much later, and little is spent on questions.
func nextAsk(taken, asking time.Duration) time.Duration {
	const shortest, longest = 8 * time.Millisecond, 50 * time.Millisecond
	return min(max(taken/32, 2*asking, shortest), longest)
}

// get asks the store for items, and returns those that are on their way.
func (l *load) get(asked []int) (loading []int, err error) {
	for from := 0; from < len(asked); from += maxCall {
		part := asked[from:min(from+maxCall, len(asked))]
		if err := l.getPart(part); err != nil {
			return nil, err
		}
		for _, i := range part {
			if l.got[i].Status == store.GetLoading {
				loading = append(loading, i)
			}
		}
	}
	return loading, nil
}

// getPart asks the store for some items.
func (l *load) getPart(part []int) error {
	l.j.loop.Beat()
	request := make([]store.GetItem, len(part))
	for k, i := range part {
		it := &l.items[i]
		request[k] = store.GetItem{Group: uint32(it.group), Hash: it.hash, Shard: it.shard}
	}
	lease := store.Lease{Engine: l.n.rank.engine, Request: l.j.load.Request}
	ctx, cancel := l.n.srv.storeContext()
	defer cancel()
	return l.n.namespace.with(ctx, func(ns store.Namespace) error {
		l.from = ns
		results, err := l.n.srv.cfg.Store.Get(ctx, ns, lease, request)
		if err != nil {
			return err
		}
		for k := range min(len(part), len(results)) {
			l.got[part[k]] = results[k]
		}
		return nil
	})
}

// ready returns how many items, from the first on, are there.
func (l *load) ready() int {
	ready := l.copied
	for ready < len(l.items) && l.got[ready].Status == store.GetReady {
		ready++
	}
	return ready
}

// copyTo copies the items up to one.
//
// REQUIRES: they are there.
func (l *load) copyTo(to int) error {
	first := l.copied
	l.copied = to
	segments := l.n.srv.cfg.Store.Segments()
	copies := make([]ShardCopy, to-first)
	for i := range copies {
		it := &l.items[first+i]
		memory, err := memoryOf(segments, l.got[first+i].Place, l.n.rank.groups[it.group].shardBytes)
		if err != nil {
			return err
		}
		copies[i] = ShardCopy{Group: it.group, Shard: l.n.rank.local(it.group, it.shard), BlockID: it.block, Memory: memory}
	}
	return l.n.copyAll(l.j, copies, func(from, to int) error {
		l.verify(copies[from:to], first+from)
		return nil
	})
}

// failAbsent notes what is not there.
func (l *load) failAbsent() {
	for i := range l.items {
		if l.got[i].Status != store.GetReady {
			l.fail(i, false)
		}
	}
}

// fail notes an item's chunk for the store, once: a chunk that failed is a miss
// once, however many of its shards did.
func (l *load) fail(i int, corrupt bool) {
	chunk := store.FailedChunk{Group: uint32(l.items[i].group), Hash: l.items[i].hash, Corrupt: corrupt}
	if n := len(l.failed); n > 0 && l.failed[n-1].Group == chunk.Group && l.failed[n-1].Hash == chunk.Hash {
		l.failed[n-1].Corrupt = l.failed[n-1].Corrupt || corrupt
	} else {
		l.failed = append(l.failed, chunk)
	}
	if corrupt {
		l.n.srv.stats.corrupt.Add(1)
	} else {
		l.n.srv.stats.absent.Add(1)
	}
}

// verify looks at the checksums of what arrived, of the items from one on.
func (l *load) verify(copies []ShardCopy, first int) {
	check := (l.n.rank.verify || l.n.srv.cfg.Verify) && !l.n.srv.cfg.Faults.NoVerify
	for i := range copies {
		if check && copies[i].Checksum != l.got[first+i].Checksum {
			l.fail(first+i, true)
			continue
		}
		l.loaded[first+i] = true
		l.bytes += int64(len(copies[i].Memory))
	}
}

// giveBack releases the references and tells the store what failed. The latter
// comes before the result: the engine may look the same prefix up next.
func (l *load) giveBack() {
	var refs []uint64
	for i := range l.got {
		if l.got[i].Status == store.GetReady {
			refs = append(refs, l.got[i].Ref)
		}
	}
	l.n.srv.cleaner.release(refs)
	for from := 0; from < len(l.failed); from += maxCall {
		l.j.loop.Beat()
		part := l.failed[from:min(from+maxCall, len(l.failed))]
		ctx, cancel := l.n.srv.storeContext()
		err := l.n.namespace.with(ctx, func(ns store.Namespace) error { return l.n.srv.cfg.Store.ReportFailed(ctx, ns, part) })
		cancel()
		if err != nil {
			l.n.srv.cfg.Log.Warn("report failed chunks", "job", l.j.id, "chunks", len(part), "error", err)
			return
		}
	}
}

func (l *load) result(err error) *connector.Result {
	r := &connector.Result{Status: connector.StatusOK, Bytes: l.bytes, Failed: failedBlocks(l.items, l.loaded)}
	for _, loaded := range l.loaded {
		if loaded {
			r.Chunks++
		}
	}
	l.times.fill(r)
	switch {
	case errors.Is(err, errCancelled):
		r.Status, r.Reason = connector.StatusCancelled, reasonCancelled
	case err != nil:
		r.Status, r.Reason = connector.StatusFailed, reasonOf(err)
		l.n.srv.cfg.Log.Warn("load failed", "job", l.j.id, "req_id", l.j.load.Request, "error", err)
	case len(r.Failed) > 0:
		r.Status, r.Reason = connector.StatusFailed, reasonAbsent
		for _, f := range l.failed {
			if f.Corrupt {
				r.Reason = reasonCorrupt
			}
		}
	}
	return r
}

// reasonOf turns an error into a Result's reason.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, errCopy):
		return reasonCopy
	case errors.Is(err, errBadPlace):
		return reasonBadPlace
	case errors.Is(err, store.ErrStaleNamespace):
		return reasonStaleEpoch
	case isAway(err):
		return reasonNoStore
	}
	return reasonStoreError
}
