package prefixindex

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// What Dump writes, little-endian: its version; for each space 1, its key, its sources with
// their lanes, and the records that those hold, in chunks, with the lanes numbered as they
// were written; behind the last space 0, and a checksum of all. Texts and tags have their
// length before them. Records that follow each other do so in the dump, if both are in it.

// dumpVersion begins a dump. The first version had none, and digests of 128 bits.
const dumpVersion = "idx2"

// ErrDump: the bytes are no dump, or a damaged one.
var ErrDump = errors.New("not a dump of an index")

// Saved is a source and what its owner wants to have kept with it.
type Saved struct {
	Source *Source
	Tag    []byte
}

// Limits of a dump.
const (
	maxDumpText    = 1 << 12
	maxDumpTag     = 1 << 16
	maxDumpSources = 1 << 16
	dumpChunk      = pageRecords
)

// Flags of a source.
const (
	dumpEveryone = 1 << iota
	dumpReuses
	dumpMiscounted
	dumpCrowded
)

// Dump writes all that some sources have told. It fails on what Restore would refuse.
//
// REQUIRES: none of them is used meanwhile. Others may be, and queries are answered.
func (x *Index) Dump(to io.Writer, sources []Saved) error {
	w := &dumpWriter{out: bufio.NewWriterSize(to, 1<<20)}
	w.buf = append(w.buf, dumpVersion...)
	spaces := map[*space][]Saved{}
	var order []*space
	for _, saved := range sources {
		s := saved.Source.space
		if spaces[s] == nil {
			order = append(order, s)
		}
		spaces[s] = append(spaces[s], saved)
	}
	for _, s := range order {
		w.byte(1)
		s.dump(w, spaces[s])
	}
	w.byte(0)
	w.flush()
	w.uint64(w.sum.Sum64())
	w.flush()
	if w.err == nil {
		w.err = w.out.Flush()
	}
	if w.err != nil {
		return fmt.Errorf("prefixindex: dump: %w", w.err)
	}
	return nil
}

func (s *space) dump(w *dumpWriter, sources []Saved) {
	for _, text := range [...]string{s.key.tenant, s.key.model, s.key.lora, s.key.salt} {
		w.text(text, maxDumpText)
	}
	if len(sources) > maxDumpSources {
		w.fail("%d sources", len(sources))
	}
	w.uint32(uint32(len(sources))) //nolint:gosec // bounded by the slots
	lanes := map[uint32]uint32{}
	s.mu.RLock()
	for i := range sources {
		s.dumpSource(w, &sources[i], lanes)
	}
	pages := len(s.records.pages)
	s.mu.RUnlock()
	var held []holding
	last := link(0) // that was written
	for n := range pages {
		s.mu.RLock()
		for i := range pageRecords {
			l := link(n*pageRecords+i) + 1 //nolint:gosec // a record's number
			if held = s.heldBy(l, lanes, held[:0]); len(held) > 0 {
				s.dumpRecord(w, l, held, last == l-1)
				last = l
			}
		}
		s.mu.RUnlock()
		w.chunk()
	}
	w.uint32(0)
	w.flush()
}

func (s *space) dumpSource(w *dumpWriter, saved *Saved, lanes map[uint32]uint32) {
	src := saved.Source
	flags := byte(0)
	for flag, set := range map[byte]bool{
		dumpEveryone: src.origin.Everyone, dumpReuses: src.origin.ReusesReported, dumpMiscounted: src.miscounted, dumpCrowded: s.slots[src.slot].crowded,
	} {
		if set {
			flags |= flag
		}
	}
	w.text(src.origin.Instance, maxDumpText)
	w.uint32(uint32(int32(src.origin.Rank))) //nolint:gosec // a rank
	w.byte(flags)
	w.uint64(s.slots[src.slot].dropped)
	w.text(string(saved.Tag), maxDumpTag)
	w.uint32(uint32(len(src.lanes))) //nolint:gosec // at most maxGroups
	for group, l := range src.lanes {
		ln := &s.lanes[l]
		lanes[l] = uint32(len(lanes))     //nolint:gosec // at most maxLanes
		w.uint32(uint32(int32(group)))    //nolint:gosec // bounded by the decoder
		w.byte(byte(ln.kind))             //
		w.uint32(uint32(ln.windowTokens)) //nolint:gosec // bounded by the decoder
		w.byte(byte(ln.told))
	}
	w.flush()
}

// heldBy appends the holdings of a record that are of some lanes, by their numbers.
func (s *space) heldBy(l link, lanes map[uint32]uint32, held []holding) []holding {
	var one [1]holding
	for _, h := range s.view(*s.records.holders(l), &one) {
		if l, ok := lanes[h.lane()]; ok && !s.lanes[h.lane()].retired {
			held = append(held, holdingOf(l, h.tier())|h&maxCount)
		}
	}
	return held
}

// dumpFollows is set with a block's size where the record comes behind the one that was
// written before it.
const dumpFollows = 1 << 31

// dumpRecord writes a record into the chunk.
func (s *space) dumpRecord(w *dumpWriter, l link, held []holding, behindLast bool) {
	size := uint32(0)
	is := *s.records.info(l)
	if at := is & sizeOf; at != 0 {
		size = uint32(s.sizes[at-1]) //nolint:gosec // bounded by the decoder
	}
	if is&follows != 0 && behindLast {
		size |= dumpFollows
	}
	w.records++
	w.uint64(uint64(s.records.hash(l)))
	w.uint64(uint64(s.records.digest(l)))
	w.uint32(size)
	w.uint32(uint32(len(held))) //nolint:gosec // at most maxList
	for _, h := range held {
		w.uint32(uint32(h))
	}
}

// dumpWriter gathers bytes and sums them. A chunk begins with how many records it has.
type dumpWriter struct {
	out     *bufio.Writer
	sum     xxh3.Hasher
	buf     []byte
	records uint32
	err     error
}

func (w *dumpWriter) byte(b byte)     { w.buf = append(w.buf, b) }
func (w *dumpWriter) uint32(v uint32) { w.buf = binary.LittleEndian.AppendUint32(w.buf, v) }
func (w *dumpWriter) uint64(v uint64) { w.buf = binary.LittleEndian.AppendUint64(w.buf, v) }

func (w *dumpWriter) text(t string, most int) {
	if len(t) > most {
		w.fail("a text of %d bytes, at most %d", len(t), most)
	}
	w.uint32(uint32(len(t))) //nolint:gosec // checked
	w.buf = append(w.buf, t...)
}

// fail ends the dump: what is written is none.
func (w *dumpWriter) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("what can't be restored: "+format, args...)
	}
}

func (w *dumpWriter) chunk() {
	if w.records == 0 {
		return
	}
	body := w.buf
	w.buf = binary.LittleEndian.AppendUint32(nil, w.records)
	w.flush()
	w.buf, w.records = body, 0
	w.flush()
}

func (w *dumpWriter) flush() {
	_, _ = w.sum.Write(w.buf) // it can't fail
	if w.err == nil {
		_, w.err = w.out.Write(w.buf)
	}
	w.buf = w.buf[:0]
}

// Restore reads a dump of an index with the same seed into this one, in which nobody has told
// anything yet. take is asked of each
// source: those that it refuses are left out. What has no room is marked as dropped. After
// an error, and whenever the caller changes its mind, the sources that were opened are to be
// closed; they are returned in any case.
func (x *Index) Restore(from io.Reader, take func(origin Origin, tag []byte) bool) (opened []Saved, err error) {
	r := &dumpReader{in: bufio.NewReaderSize(from, 1<<20)}
	if version := string(r.read(len(dumpVersion))); version != dumpVersion {
		r.fail("it is of another version, or none")
	}
	for r.byte() == 1 && r.err == nil {
		opened = append(opened, x.restoreSpace(r, take)...)
	}
	want := r.sum.Sum64()
	if got := r.uint64(); r.err == nil && got != want {
		r.fail("its checksum is another")
	}
	if r.err != nil {
		return opened, fmt.Errorf("prefixindex: restore: %w", r.err)
	}
	return opened, nil
}

func (x *Index) restoreSpace(r *dumpReader, take func(Origin, []byte) bool) (opened []Saved) {
	key := Origin{Tenant: r.text(maxDumpText), Model: r.text(maxDumpText), LoRA: r.text(maxDumpText), Salt: r.text(maxDumpText)}
	sources := r.uint32()
	if sources > maxDumpSources {
		r.fail("too many sources")
	}
	lanes := restoredLanes{}
	for range sources {
		if saved, ok := x.restoreSource(r, key, take, &lanes); ok {
			opened = append(opened, saved)
		}
		if r.err != nil {
			return opened
		}
	}
	var s *space
	if len(opened) > 0 {
		s = opened[0].Source.space
	}
	last := position{}
	for {
		n := r.uint32()
		if n == 0 || r.err != nil {
			return opened
		}
		if n > dumpChunk {
			r.fail("a chunk is too large")
			return opened
		}
		s.restoreChunk(r, n, lanes, &last)
	}
}

// restoredLanes are, by their numbers in the dump, the lanes here; nil of one that was left
// out.
type restoredLanes []*restoredLane

type restoredLane struct {
	source *Source
	lane   uint32
}

func (x *Index) restoreSource(r *dumpReader, key Origin, take func(Origin, []byte) bool, lanes *restoredLanes) (saved Saved, ok bool) {
	origin := key
	origin.Instance = r.text(maxDumpText)
	origin.Rank = int(int32(r.uint32())) //nolint:gosec // it was one
	flags, dropped := r.byte(), r.uint64()
	origin.Everyone, origin.ReusesReported = flags&dumpEveryone != 0, flags&dumpReuses != 0
	tag := []byte(r.text(maxDumpTag))
	groups := r.uint32()
	if groups > maxGroups {
		r.fail("too many groups")
	}
	if r.err != nil {
		return saved, false
	}
	if ok = take(origin, tag); ok {
		saved = Saved{x.Open(origin), tag}
		saved.Source.miscounted = flags&dumpMiscounted != 0
		s := saved.Source.space
		s.mu.Lock()
		defer s.mu.Unlock()
		s.slots[saved.Source.slot].dropped, s.slots[saved.Source.slot].crowded = dropped, flags&dumpCrowded != 0
	}
	for range groups {
		group, kind, windowTokens, told := int(int32(r.uint32())), groupKind(r.byte()), r.uint32(), tierSet(r.byte()) //nolint:gosec // it was one
		if r.err != nil {
			return saved, ok
		}
		if kind != dense && kind != window || windowTokens > math.MaxInt32 || told >= 1<<tiers {
			r.fail("a group that can't be")
			return saved, ok
		}
		*lanes = append(*lanes, saved.Source.restoreLane(group, kind, int(windowTokens), told))
	}
	return saved, ok
}

// restoreLane opens a group's lane. The space is locked; src may be nil.
func (src *Source) restoreLane(group int, kind groupKind, windowTokens int, told tierSet) *restoredLane {
	if src == nil {
		return nil
	}
	l, ok := src.laneOf(group, kind, windowTokens)
	if !ok {
		src.drop(1)
		return nil
	}
	for tier := range Tier(tiers) {
		if told.has(tier) {
			src.tells(l, tier)
		}
	}
	return &restoredLane{src, l}
}

// dumpedRecord is a record as it was read.
type dumpedRecord struct {
	hash        kvevents.Hash
	digest      digest
	blockTokens uint32
	follows     bool
}

func (r *dumpReader) record() (rec dumpedRecord) {
	rec.hash, rec.digest = r.hash(), digest(r.uint64())
	size := r.uint32()
	rec.blockTokens, rec.follows = size&^dumpFollows, size&dumpFollows != 0
	if placed := rec.digest != 0; rec.blockTokens > maxBlockTokens || placed != (rec.blockTokens > 0) || rec.follows && !placed {
		r.fail("a record that can't be")
	}
	return rec
}

// restoreChunk reads records; s is nil where none of their sources was taken.
func (s *space) restoreChunk(r *dumpReader, n uint32, lanes restoredLanes, last *position) {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
	}
	for range n {
		rec := r.record()
		holders := r.uint32()
		if holders == 0 || holders > maxList {
			r.fail("a record that nobody can hold")
		}
		if r.err != nil {
			return
		}
		var l link
		for range holders {
			h := holding(r.uint32())
			if r.err != nil || int(h.lane()) >= len(lanes) || h.tier() >= tiers || h.count() == 0 {
				r.fail("a holder that can't be")
				return
			}
			if of := lanes[h.lane()]; of != nil {
				l = of.source.restoreHolding(l, &rec, last, holdingOf(of.lane, h.tier()), h.count())
			}
		}
		*last = position{l, rec.digest}
	}
}

// restoreHolding adds copies to a record, which is made if l is 0; it returns the record.
func (src *Source) restoreHolding(l link, rec *dumpedRecord, last *position, who holding, copies int) link {
	s := src.space
	if l == 0 {
		if l = s.restoreRecord(rec, last); l == 0 {
			src.drop(1)
			return 0
		}
	}
	h := s.records.holders(l)
	if _, ok := s.add(h, who); !ok {
		src.drop(1)
		if *h == 0 {
			s.forget(l)
			return 0
		}
		return l
	}
	if copies > 1 {
		s.setCount(h, who, copies)
	}
	return l
}

// restoreRecord adds a record that nobody holds yet, 0 without memory; last is the one
// that was read before it.
func (s *space) restoreRecord(rec *dumpedRecord, last *position) link {
	l := s.enter(rec.hash, s.keyOf(rec.hash))
	if l == 0 || rec.digest == 0 {
		return l
	}
	before, prev := digest(0), link(0)
	if rec.follows && last.link != 0 {
		before, prev = last.digest, last.link
	}
	size := s.enterSize(int(rec.blockTokens))
	if size != 0 && !s.place(l, before, rec.digest, size, s.find(rec.digest, prev, s.seeChain(rec.digest))) {
		s.forget(l)
		return 0
	}
	return l
}

// setCount says how many copies a holder has.
func (s *space) setCount(to *holders, who holding, copies int) {
	if *to&isList == 0 {
		*to = holders(who | holding(copies)) //nolint:gosec // at most maxCount
		return
	}
	held := s.lists.of(*to)
	i := slices.IndexFunc(held, func(h holding) bool { return h&whose == who })
	held[i] = who | holding(copies) //nolint:gosec // at most maxCount
}
