package kvevents

import "math"

// MaxBatchBytes bounds a batch: a million blocks of 16 tokens have less.
const MaxBatchBytes = 128 << 20

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
// that is not known, or with fields that do not fit; err has the first reason. A
// batch that is none at all is ErrMalformed, and nothing of it is returned.
//
// The batch is the caller's until the next call, which fills it anew; ExtraKeys are
// views of data.
func (d *Decoder) Decode(data []byte) (batch *Batch, refused int, err error) {
	if len(data) > MaxBatchBytes {
		return nil, 0, malformed("%d bytes; at most %d", len(data), MaxBatchBytes)
	}
	d.used.stored, d.used.removed = 0, 0
	d.batch = Batch{Events: d.batch.Events[:0]}
	c := cursor{data: data}
	length := c.array()
	if c.err == nil && (length < 2 || length > maxBatchLength) {
		return nil, 0, malformed("an array of %d values", length)
	}
	d.batch.Time = readTime(&c)
	for range c.array() {
		event, end, fault := d.event(c)
		if fault == nil {
			c.at = end
			d.batch.Events = append(d.batch.Events, event)
			continue
		}
		// It must not hide the next one.
		if c.skip(); c.err != nil {
			break
		}
		refused++
		if err == nil {
			err = fault
		}
	}
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
		return nil, 0, malformed("event: %v", c.err)
	}
	switch f.kind {
	case stored:
		return d.storedEvent(f), c.at, nil
	case removed:
		return d.removedEvent(f), c.at, nil
	case cleared:
		return &d.cleared, c.at, nil
	}
	return nil, 0, malformed("event of kind %.40q", f.name)
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
		Tenant: d.text(f.tenant), Backend: d.text(f.backend), ExtraKeys: f.extra, HasExtraKeys: f.extra != nil,
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
	*r = BlockRemoved{Hashes: append(r.Hashes[:0], f.hashes...), Medium: d.text(f.medium), Tenant: d.text(f.tenant), Backend: d.text(f.backend)}
	if f.set.has(fieldGroup) {
		slot.group, r.Group = f.group, &slot.group
	}
	return r
}

// maxTexts bounds the names that a decoder keeps.
const maxTexts = 1 << 10

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
	d.texts[text] = text
	return text
}
