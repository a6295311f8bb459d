package kvevents

import (
	"math"
	"slices"
)

// MaxBatchBytes bounds a batch: what an engine tells of one step. The other limits are
// for values of a byte or two, which take far more memory once they are read.
const (
	MaxBatchBytes = 16 << 20
	maxEvents     = 1 << 16
	maxHashes     = 1 << 20
	maxTokens     = 1 << 22
)

// What is kept from one batch for the next: so many events, with so many hashes and
// tokens each.
const (
	keptEvents = 256
	keptHashes = 1 << 10
	keptTokens = 1 << 13
)

// maxRank bounds data-parallel ranks, maxNumber groups and the sizes of blocks and
// windows.
const (
	maxRank   = 1 << 16
	maxNumber = 1 << 24
)

// Decoder reads batches. It is not safe for concurrent use.
type Decoder struct {
	batch Batch
	// Events that were read before and are filled anew.
	stored  []*storedSlot
	removed []*removedSlot
	cleared AllBlocksCleared
	// used counts the slots that the current batch has.
	used struct{ stored, removed int }
	// texts has the names that were met: the same few come again and again.
	texts  map[string]string
	fields fields
}

// NewDecoder makes a decoder.
func NewDecoder() *Decoder { return &Decoder{texts: map[string]string{}} }

// Decode reads a batch. refused counts the events that could not be read: of a kind
// that is not known, or with fields that do not fit; err has the first reason, and see
// Batch.Doubtful. A batch that is none at all, or too large, is ErrMalformed, and nothing
// of it is returned.
//
// The batch is the caller's until the next call, which fills it anew; ExtraKeys and
// object keys are views of data.
func (d *Decoder) Decode(data []byte) (batch *Batch, refused int, err error) {
	if len(data) > MaxBatchBytes {
		return nil, 0, malformed("%d bytes; at most %d", len(data), MaxBatchBytes)
	}
	d.shrink()
	d.used.stored, d.used.removed = 0, 0
	d.batch = Batch{Events: d.batch.Events[:0]}
	c := cursor{data: data}
	length := c.array()
	if c.err == nil && (length < 2 || length > maxBatchLength) {
		return nil, 0, malformed("an array of %d values", length)
	}
	d.batch.Time = readTime(&c)
	refused, err = d.events(&c)
	if length > 2 && !c.null() {
		rank := int(c.natural(maxRank)) //nolint:gosec // small
		d.batch.Rank = &rank
	}
	for range max(length-3, 0) {
		c.skip()
	}
	if c.err != nil {
		return nil, 0, malformed("%v", c.err)
	}
	if n := len(data) - c.at; n > 0 {
		return nil, 0, malformed("%d bytes behind its end", n)
	}
	if t := d.batch.Time; math.IsNaN(t) || math.IsInf(t, 0) {
		return nil, 0, malformed("time %v", t)
	}
	return &d.batch, refused, err
}

// events reads a batch's events.
func (d *Decoder) events(c *cursor) (refused int, err error) {
	n := c.array()
	if n > maxEvents {
		c.fail(errMany)
		return 0, nil
	}
	hashes, tokens := 0, 0
	for range n {
		event, end, fault := d.event(*c)
		if fault == nil {
			c.at = end
			d.batch.Events = append(d.batch.Events, event)
			hashes, tokens = hashes+len(d.fields.hashes), tokens+len(d.fields.tokens)
			if hashes > maxHashes || tokens > maxTokens {
				c.fail(errMany)
				return 0, nil
			}
			continue
		}
		if d.fields.kind == unknown {
			d.fields.findName(*c)
		}
		// It must not hide the next one.
		if c.skip(); c.err != nil {
			return 0, nil
		}
		refused++
		if err == nil {
			err = malformed("event of kind %.40q: %v", d.fields.name, fault)
		}
		if d.fields.kind != stored {
			d.batch.Doubtful, d.batch.Events = true, d.batch.Events[:0]
		}
	}
	return refused, err
}

// shrink gives back what the batch before took beyond what is kept.
func (d *Decoder) shrink() {
	for _, slot := range d.stored[:min(d.used.stored, keptEvents)] {
		slot.event.Hashes, slot.event.TokenIDs = kept(slot.event.Hashes, keptHashes), kept(slot.event.TokenIDs, keptTokens)
		slot.event.ExtraKeys, slot.event.ObjectKey = nil, nil // of the batch's bytes
	}
	for _, slot := range d.removed[:min(d.used.removed, keptEvents)] {
		slot.event.Hashes, slot.event.ObjectKey = kept(slot.event.Hashes, keptHashes), nil
	}
	if len(d.stored) > keptEvents {
		d.stored = slices.Clone(d.stored[:keptEvents])
	}
	if len(d.removed) > keptEvents {
		d.removed = slices.Clone(d.removed[:keptEvents])
	}
	if cap(d.batch.Events) > keptEvents {
		d.batch.Events = nil
	}
	d.fields.hashes, d.fields.tokens = kept(d.fields.hashes, keptHashes), kept(d.fields.tokens, keptTokens)
}

// kept returns memory for the next batch, unless it is more than is kept.
func kept[T any](values []T, most int) []T {
	if cap(values) > most {
		return nil
	}
	return values
}

// maxBatchLength bounds the values of a batch; there are three, and may be more.
const maxBatchLength = 16

// readTime reads a batch's time: seconds, or milliseconds where it is an integer too
// large for seconds.
func readTime(c *cursor) float64 {
	t, whole := c.real()
	if whole && t > 1e11 {
		return t / 1e3
	}
	return t
}

// event reads the event that c is at. end is where the next one begins.
func (d *Decoder) event(c cursor) (event Event, end int, err error) {
	f := &d.fields
	f.reset()
	switch code := c.peek(); {
	case code&0xf0 == 0x90 || code == codeArray16 || code == codeArray32:
		f.readArray(&c)
	default:
		f.readMap(&c)
	}
	if c.err != nil {
		return nil, 0, c.err
	}
	switch f.kind {
	case stored:
		return d.storedEvent(f), c.at, nil
	case removed:
		return d.removedEvent(f), c.at, nil
	case cleared:
		return &d.cleared, c.at, nil
	}
	return nil, 0, errUnknown
}

// storedSlot is a BlockStored with the places that its pointers lead to.
type storedSlot struct {
	event  BlockStored
	parent Hash
	group  int
	lora   int64
}

func (d *Decoder) storedEvent(f *fields) Event {
	if d.used.stored == len(d.stored) {
		d.stored = append(d.stored, &storedSlot{})
	}
	slot := d.stored[d.used.stored]
	d.used.stored++
	s := &slot.event
	*s = BlockStored{
		Hashes: append(s.Hashes[:0], f.hashes...), TokenIDs: append(s.TokenIDs[:0], f.tokens...), BlockSize: f.blockSize,
		Medium: d.text(f.medium), LoraName: d.text(f.lora), SpecKind: d.text(f.spec), Window: f.window,
		Tenant: d.text(f.tenant), Backend: d.text(f.backend), ObjectKey: f.object, ExtraKeys: f.extra, HasExtraKeys: f.extra != nil,
	}
	if len(s.TokenIDs) == 0 {
		s.TokenIDs = nil
	}
	if f.set.has(fieldParent) {
		slot.parent, s.Parent = f.parent, &slot.parent
	}
	if f.set.has(fieldGroup) {
		slot.group, s.Group = f.group, &slot.group
	}
	if f.set.has(fieldLoraID) {
		slot.lora, s.LoraID = f.loraID, &slot.lora
	}
	return s
}

// removedSlot is a BlockRemoved with the place that its pointer leads to.
type removedSlot struct {
	event BlockRemoved
	group int
}

func (d *Decoder) removedEvent(f *fields) Event {
	if d.used.removed == len(d.removed) {
		d.removed = append(d.removed, &removedSlot{})
	}
	slot := d.removed[d.used.removed]
	d.used.removed++
	r := &slot.event
	*r = BlockRemoved{Hashes: append(r.Hashes[:0], f.hashes...), Medium: d.text(f.medium), Tenant: d.text(f.tenant), Backend: d.text(f.backend), ObjectKey: f.object}
	if f.set.has(fieldGroup) {
		slot.group, r.Group = f.group, &slot.group
	}
	return r
}

// maxTexts bounds the names that a decoder keeps, and maxText the bytes of one.
const (
	maxTexts = 1 << 10
	maxText  = 1 << 10
)

// text returns a name as a string.
func (d *Decoder) text(name []byte) string {
	if len(name) == 0 {
		return ""
	}
	if known, ok := d.texts[string(name)]; ok {
		return known
	}
	if len(d.texts) >= maxTexts {
		clear(d.texts)
	}
	text := string(name)
	if len(text) > maxText {
		return text
	}
	d.texts[text] = text
	return text
}
