package prefixindex

import (
	"slices"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// found is who holds some blocks that follow each other, up to the first that nobody
// holds.
type found struct {
	holders []holders
	// joined has the holders of the blocks that are in more than one record, by the
	// block; they have holders 0.
	joined map[int][]holding
	ahead  ahead
}

func (f *found) reset(n int) {
	f.holders = slices.Grow(f.holders[:0], n)[:n]
	clear(f.holders)
	clear(f.joined)
}

// join adds the holders of one more record of a block.
func (f *found) join(s *space, i int, more holders) {
	var one [1]holding
	if f.holders[i] == 0 && f.joined[i] == nil {
		f.holders[i] = more
		return
	}
	if f.joined == nil {
		f.joined = map[int][]holding{}
	}
	if f.holders[i] != 0 {
		f.joined[i] = append(f.joined[i], s.view(f.holders[i], &one)...)
		f.holders[i] = 0
	}
	f.joined[i] = append(f.joined[i], s.view(more, &one)...)
}

// joinedAll puts what was joined in order, each holder once: it may hold several of the
// records.
func (f *found) joinedAll() {
	for i, held := range f.joined {
		slices.Sort(held)
		f.joined[i] = slices.CompactFunc(held, func(a, b holding) bool { return (a^b)&whose == 0 })
	}
}

// end leaves out what comes behind a block that nobody holds.
func (f *found) end(i int) { f.holders = f.holders[:i+1] }

// of returns the holders of a block.
func (f *found) of(s *space, i int, one *[1]holding) []holding {
	if f.holders[i] == 0 && len(f.joined) > 0 {
		return f.joined[i]
	}
	return s.view(f.holders[i], one)
}

// position is a record that was found, and its digest: 0 for none.
type position struct {
	link   link
	digest digest
}

// findChains finds who holds blocks, by their digests. at is where the blocks before were
// found, and then where these were.
func (s *space) findChains(chain []digest, f *found, at *position) {
	f.reset(len(chain))
	if at.link != 0 && s.records.digest(at.link) != at.digest {
		*at = position{} // gone meanwhile: what followed it has a cell
	}
	looked, byCell := 0, false
	for i := 0; i < len(chain); i++ {
		if n := s.records.along(at.link, chain[i:], f.holders[i:]); n > 0 {
			i += n
			at.link += link(n) //nolint:gosec // at most len(chain)
			byCell = false
		}
		if i == len(chain) {
			break
		}
		if byCell && i >= looked {
			looked = min(i+aheadBlocks, len(chain))
			s.lookForChain(chain[i:looked], &f.ahead)
		}
		byCell = true
		if at.link = s.findChain(chain[i], f, i); f.holders[i] == 0 && f.joined[i] == nil {
			f.end(i)
			break
		}
	}
	at.digest = chain[len(chain)-1]
	f.joinedAll()
}

// along finds the holders of the records that follow one, as far as they have some
// digests.
func (r *records) along(l link, chain []digest, into []holders) (n int) {
	for n < len(chain) && r.follower(l) != 0 {
		p, i := r.of(l + 1)
		from := n
		for n < len(chain) && i < pageRecords && p.info[i]&follows != 0 && p.digests[i] == chain[n] {
			into[n] = p.holders[i]
			n++
			i++
		}
		l += link(n - from) //nolint:gosec // at most a page
		if i < pageRecords {
			break
		}
	}
	return n
}

// findChain finds who holds a block by the cells of its digest. It returns the record
// that others may follow, 0 when there are several.
func (s *space) findChain(d digest, f *found, i int) link {
	p := s.tables[byChain].probe(d.key())
	for l := p.next(); l != 0; l = p.next() {
		page, n := s.records.of(l)
		if page.digests[n] != d {
			continue
		}
		f.join(s, i, page.holders[n])
		if page.info[n]&isTwin == 0 {
			return l
		}
	}
	return 0
}

// findHashes finds who holds blocks of a size, or of one that is not known, by their
// hashes.
func (s *space) findHashes(hashes []kvevents.Hash, blockTokens int, f *found) {
	f.reset(len(hashes))
	size := s.sizeIn(blockTokens)
	s.lookForHashes(hashes, &f.ahead)
	for i, hash := range hashes {
		l, way := s.tables[byHash].from(&f.ahead.seen[i])
		for ; l != 0; l = way.next() {
			page, n := s.records.of(l)
			if is := page.info[n] & sizeOf; page.hashes[n] == hash && (is == size || is == 0) {
				f.join(s, i, page.holders[n])
			}
		}
		if f.holders[i] == 0 && f.joined[i] == nil {
			f.end(i)
			break
		}
	}
	f.joinedAll()
}
