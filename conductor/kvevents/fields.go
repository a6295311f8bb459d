package kvevents

import (
	"encoding/binary"
	"slices"
)

// fields is what an event says, of whichever kind and encoding.
type fields struct {
	kind kind
	name []byte // of the kind
	set  fieldSet

	hashes    []Hash
	parent    Hash
	tokens    []uint32
	blockSize int
	loraID    int64
	group     int
	window    int
	medium, lora, spec, tenant, backend, object,
	extra []byte // views; extra is a whole value
}

type kind uint8

const (
	unknown kind = iota
	stored
	removed
	cleared
)

// fieldSet tells which of the fields that may be nil are not.
type fieldSet uint8

const (
	fieldParent fieldSet = 1 << iota
	fieldGroup
	fieldLoraID
	fieldSequence // hashes came under Mooncake's name for them
)

func (s fieldSet) has(field fieldSet) bool { return s&field != 0 }

// reset empties f and keeps its memory.
func (f *fields) reset() { *f = fields{hashes: f.hashes[:0], tokens: f.tokens[:0]} }

// storedOrder and removedOrder are the fields behind the name where an event is an
// array.
func storedOrder(i int) string {
	names := [...]string{
		"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx",
		"kv_cache_spec_kind", "kv_cache_spec_sliding_window",
	}
	if i < len(names) {
		return names[i]
	}
	return ""
}

func removedOrder(i int) string {
	names := [...]string{"block_hashes", "medium", "group_idx"}
	if i < len(names) {
		return names[i]
	}
	return ""
}

// readArray reads an event that is an array: its name and its fields in order.
func (f *fields) readArray(c *cursor) {
	length := c.array()
	if length == 0 {
		c.fail(errKind)
		return
	}
	f.readName(c)
	for i := range length - 1 {
		switch f.kind {
		case stored:
			f.read(c, storedOrder(i))
		case removed:
			f.read(c, removedOrder(i))
		case cleared, unknown:
			c.skip()
		}
	}
}

// readMap reads an event that is a map, in whatever order its fields come.
func (f *fields) readMap(c *cursor) {
	for range c.mapping() {
		name := c.bytes()
		if c.err != nil {
			return
		}
		f.read(c, string(name)) // does not allocate: the name is only compared
	}
}

// findName looks for the kind of an event that could not be read, which may stand behind
// what is wrong.
func (f *fields) findName(c cursor) {
	if code := c.peek(); code&0xf0 != 0x80 && code != codeMap16 && code != codeMap32 {
		return // an array begins with it
	}
	for range c.mapping() {
		if name := c.bytes(); f.kind == unknown && (string(name) == "type" || string(name) == "event_type") {
			f.readName(&c)
		} else {
			c.skip()
		}
		if c.err != nil {
			return
		}
	}
}

// readName reads what kind of event it is, in vLLM's words or in Mooncake's.
func (f *fields) readName(c *cursor) {
	f.name = c.bytes()
	switch string(f.name) {
	case kindStored, "stored":
		f.kind = stored
	case kindRemoved, "removed":
		f.kind = removed
	case kindCleared, "cleared":
		f.kind = cleared
	}
}

// read reads the value of a field, and passes over one that it does not know.
func (f *fields) read(c *cursor, name string) {
	switch name {
	case "type", "event_type":
		// Mooncake's master may say both.
		if f.kind == unknown {
			f.readName(c)
			return
		}
	case "block_hashes":
		if !f.set.has(fieldSequence) {
			f.hashes = readHashes(c, f.hashes[:0])
			return
		}
	case "seq_hashes": // Mooncake's; block_hashes beside it has the same
		f.set |= fieldSequence
		f.hashes = readHashes(c, f.hashes[:0])
		return
	case "parent_block_hash", "parent_hash":
		if !c.null() {
			f.set |= fieldParent
			f.parent = readHash(c)
		}
		return
	case "token_ids":
		f.tokens = readTokens(c, f.tokens[:0])
		return
	case "extra_keys":
		from := c.at
		c.skip()
		if c.err == nil && c.data[from] != codeNil {
			f.extra = c.data[from:c.at]
		}
		return
	default:
		if f.readScalar(c, name) {
			return
		}
	}
	c.skip()
}

// readScalar reads a field that is a number or a name, or nil.
func (f *fields) readScalar(c *cursor, name string) bool {
	var text *[]byte
	var number *int
	switch name {
	case "block_size":
		number = &f.blockSize
	case "group_idx":
		number = &f.group
	case "kv_cache_spec_sliding_window":
		number = &f.window
	case "medium":
		text = &f.medium
	case "lora_name":
		text = &f.lora
	case "kv_cache_spec_kind":
		text = &f.spec
	case "tenant_id":
		text = &f.tenant
	case "backend_id":
		text = &f.backend
	case "object_key":
		text = &f.object
	case "lora_id":
		if !c.null() {
			bits, _ := c.number()
			f.set |= fieldLoraID
			f.loraID = int64(bits) //nolint:gosec // the same bits
		}
		return true
	default:
		return false
	}
	switch {
	case c.null():
	case text != nil:
		*text = c.bytes()
	default:
		*number = int(c.natural(maxNumber)) //nolint:gosec // small
		if number == &f.group {
			f.set |= fieldGroup
		}
	}
	return true
}

func readHashes(c *cursor, dst []Hash) []Hash {
	n := c.array()
	if n > maxHashes {
		c.fail(errMany)
		return dst
	}
	for range n {
		dst = append(dst, readHash(c))
		if c.err != nil {
			break
		}
	}
	return dst
}

// readHash takes a number, also a negative one as a publisher with signed numbers
// writes it, or the bytes of a whole hash.
func readHash(c *cursor) Hash {
	switch code := c.peek(); {
	case code == codeUint64 && c.at+9 <= len(c.data):
		c.at++
		return Hash(c.big(8))
	case code < 0x80 || code >= 0xe0 || code >= codeUint8 && code <= codeInt64:
		bits, _ := c.number()
		return Hash(bits)
	}
	whole := c.bytes()
	if len(whole) < hashBytes {
		c.fail(errKind)
		return 0
	}
	return HashOf(whole)
}

// readTokens reads token ids, nearly all of the bytes of a stream.
func readTokens(c *cursor, dst []uint32) []uint32 {
	if c.null() {
		return dst
	}
	n := c.array()
	if n > maxTokens {
		c.fail(errMany)
		return dst
	}
	data, at := c.data, c.at
	dst = slices.Grow(dst, n) // as many bytes are there
	for range n {
		// Eight bytes at once have any token. Its form is not branched on: it is as
		// good as random with a large vocabulary, and a wrong guess costs more than all
		// of this.
		if at+8 <= len(data) {
			code := data[at]
			if size := code - codeUint8; size <= 2 {
				word := binary.BigEndian.Uint64(data[at:]) << 8
				dst = append(dst, uint32(word>>((64-(8<<size))&63))) //nolint:gosec // at most 32 bits are left
				at += 1 + 1<<size
				continue
			}
			if code < 0x80 {
				dst = append(dst, uint32(code))
				at++
				continue
			}
		}
		c.at = at
		dst = append(dst, uint32(c.natural(1<<32-1))) //nolint:gosec // 32 bits
		if c.err != nil {
			return dst
		}
		at = c.at
	}
	c.at = at
	return dst
}
