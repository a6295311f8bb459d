package indexer

import (
	"slices"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/feed"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
	"github.com/mooncake-sidecar/sidecar/conductor/registry"
)

// directory is who is registered, as queries need it. It does not change.
type directory struct {
	tenants map[string]*tenant
	// members are all, in the order of their keys.
	members []*member
	// left and leavers as in contract.Stats: who is no member any more is counted there.
	left    contract.Status
	leavers uint64
}

// tenant has the ranks of its instances in the order of instances and ranks, and the stores
// that they load from.
type tenant struct {
	engines []entry
	stores  []entry
	// at is the place of each rank, and loads from the stores by who loads from them.
	at    map[rank]int
	loads map[loader][]*member
}

// loader is who loads from a store: an instance's engines of a model, or all of it.
type loader struct{ model, instance string }

// loaderOf says who loads from a store.
func loaderOf(s *contract.Service) loader {
	if s.Rank == prefixindex.Shared {
		return loader{s.Model, s.Instance}
	}
	return loader{model: s.Model}
}

type rank struct {
	instance string
	number   int
}

type entry struct {
	*member
	rank
}

// fileLocked makes the directory anew.
func (x *Indexer) fileLocked() {
	d := &directory{tenants: map[string]*tenant{}, members: make([]*member, 0, len(x.members)), left: x.left, leavers: x.leavers}
	for _, m := range x.members {
		d.members = append(d.members, m)
	}
	slices.SortFunc(d.members, func(a, b *member) int { return registry.Compare(a.service.Key(), b.service.Key()) })
	for _, m := range d.members {
		t := d.tenants[m.service.Tenant]
		if t == nil {
			t = &tenant{at: map[rank]int{}, loads: map[loader][]*member{}}
			d.tenants[m.service.Tenant] = t
		}
		if m.service.Type == contract.TypeMooncake {
			t.stores = append(t.stores, entry{m, rank{m.service.Instance, prefixindex.Shared}})
			by := loaderOf(&m.service)
			t.loads[by] = append(t.loads[by], m)
			continue
		}
		e := entry{m, rank{m.service.Instance, m.service.Rank}}
		t.at[e.rank] = len(t.engines)
		t.engines = append(t.engines, e)
	}
	for _, t := range d.tenants {
		if len(t.engines) == 0 { // then they answer for themselves
			for _, e := range t.stores {
				t.at[e.rank] = len(t.engines)
				t.engines = append(t.engines, e)
			}
		}
	}
	x.directory.Store(d)
}

// Query appends a match for each rank of each instance that is registered for the query's
// tenant (or of the one that is asked for), also where it holds nothing or is of another
// model; none when there is no such tenant or instance. Ranks of an instance follow each
// other, instances and ranks are in order.
func (x *Indexer) Query(q *contract.Query, dst []contract.RankMatch) []contract.RankMatch {
	x.counts.queries.Add(1)
	x.counts.asked.Add(uint64(q.TokenCount())) //nolint:gosec // a length
	tenantID := q.Tenant
	if tenantID == "" {
		tenantID = prefixindex.DefaultTenant
	}
	t := x.directory.Load().tenants[tenantID]
	if t == nil {
		return dst
	}
	first := len(dst)
	dst = t.rows(q, dst)
	rows := dst[first:]
	var found []prefixindex.Match
	for _, asked := range t.questions(q) {
		for _, m := range x.index.Query(&asked, found[:0]) {
			t.put(rows, &m)
		}
	}
	best := 0
	for i := range rows {
		best = max(best, rows[i].Through[prefixindex.Disk])
	}
	x.counts.matched.Add(uint64(best)) //nolint:gosec // a length
	return dst
}

// rows appends a row for each rank that is asked for, with nothing found.
func (t *tenant) rows(q *contract.Query, dst []contract.RankMatch) []contract.RankMatch {
	everybodys := map[string]feed.Summary{} // the worst of those that all load from, by model
	for i := range t.engines {
		e := &t.engines[i]
		if q.Instance != "" && q.Instance != e.instance {
			continue
		}
		s := e.feed.Summary()
		row := contract.RankMatch{Match: prefixindex.Match{Instance: e.instance, Rank: e.number}, State: s.State, Since: s.Since}
		row.Foreign = e.service.Model != q.Model || q.BlockTokens != 0 && e.service.BlockTokens != 0 && q.BlockTokens != e.service.BlockTokens
		all, known := everybodys[e.service.Model]
		if !known {
			all = worst(feed.Summary{State: contract.Complete}, t.loads[loader{model: e.service.Model}])
			everybodys[e.service.Model] = all
		}
		s = worst(s, t.loads[loader{e.service.Model, e.instance}])
		if worse(all.State, s.State) {
			s = all
		}
		row.State, row.Since = s.State, s.Since
		dst = append(dst, row)
	}
	return dst
}

// worst returns what is known of the stream, or of a store, of which least is.
func worst(s feed.Summary, stores []*member) feed.Summary {
	for _, m := range stores {
		if of := m.feed.Summary(); worse(of.State, s.State) {
			s = of
		}
	}
	return s
}

// worse tells whether less is known in state a than in b.
func worse(a, b contract.State) bool { return badness(a) > badness(b) }

func badness(s contract.State) int {
	switch s {
	case contract.Complete:
		return 0
	case contract.Incomplete:
		return 1
	case contract.Silent:
		return 2
	case contract.Connecting:
	}
	return 3
}

// questions are those to the index that make up a query: one for each size of blocks, where
// none is named, and for each meaning of its salt.
func (t *tenant) questions(q *contract.Query) []prefixindex.Query {
	base := prefixindex.Query{
		Tenant: q.Tenant, Model: q.Model, LoRA: q.LoRA, BlockTokens: q.BlockTokens, Salt: q.CacheSalt, EngineSalt: q.AdditionalSalt,
		Instance: q.Instance, Tokens: q.Tokens, Hashes: q.Hashes,
	}
	all := append(make([]prefixindex.Query, 0, 4), base)
	if !q.HasAdditionalSalt && q.CacheSalt != "" {
		engines := base
		engines.Salt, engines.EngineSalt = "", q.CacheSalt
		all = append(all, engines)
	}
	if q.BlockTokens != 0 {
		return all
	}
	var sized []prefixindex.Query
	for _, size := range t.blockSizes(q) {
		for _, one := range all {
			one.BlockTokens = size
			sized = append(sized, one)
		}
	}
	return sized
}

// blockSizes are those of the engines that are asked, as they were registered, or else as
// their events say.
func (t *tenant) blockSizes(q *contract.Query) (sizes []int) {
	for i := range t.engines {
		e := &t.engines[i]
		if e.service.Model != q.Model || q.Instance != "" && q.Instance != e.instance {
			continue
		}
		size := e.service.BlockTokens
		if size == 0 {
			size = e.feed.Summary().BlockTokens
		}
		if size != 0 && !slices.Contains(sizes, size) {
			sizes = append(sizes, size)
		}
	}
	return sizes
}

// put enters a match in its row, if that was asked for: the best, where several questions
// have one.
func (t *tenant) put(rows []contract.RankMatch, m *prefixindex.Match) {
	i, ok := t.at[rank{m.Instance, m.Rank}]
	if !ok || len(rows) == 0 {
		return
	}
	// Rows are in the order of the engines; of one instance they begin further on.
	if len(rows) != len(t.engines) {
		i -= t.at[rank{rows[0].Instance, rows[0].Rank}]
	}
	if i < 0 || i >= len(rows) {
		return
	}
	row := &rows[i]
	if better := m.Through[prefixindex.Disk] >= row.Through[prefixindex.Disk]; better {
		truncated := row.Truncated
		row.Match = *m
		row.Truncated = row.Truncated || truncated
	}
}

// View shows what is known, with at most so many hashes.
func (x *Indexer) View(maxHashes int) contract.View {
	var v contract.View
	for _, m := range x.list() {
		size := m.service.BlockTokens
		if size == 0 {
			size = m.feed.Summary().BlockTokens
		}
		one := contract.ModelContext{
			Model: m.service.Model, LoRA: m.service.LoRA, BlockTokens: size, AdditionalSalt: m.service.AdditionalSalt, Tenant: m.service.Tenant, Instance: m.service.Instance,
		}
		if !slices.Contains(v.Contexts, one) {
			v.Contexts = append(v.Contexts, one)
		}
	}
	v.Truncated = !x.index.Hashes(func(engine, index uint64) bool {
		if len(v.Hashes) >= maxHashes {
			return false
		}
		v.Hashes = append(v.Hashes, contract.HashPair{Engine: engine, Index: index})
		return true
	})
	return v
}
