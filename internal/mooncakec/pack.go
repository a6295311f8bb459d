package mooncakec

import (
	"encoding/binary"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// pins is which structure a library takes for how objects are kept: mooncake_replicate_config_t
// has had two forms since there is a shared library, and no version. In both there
// are the number of replicas at 0 and the preferred segments at 16 and 24.
type pins int

const (
	// pinsUnknown: neither was recognised. Objects are stored without pins.
	pinsUnknown pins = iota
	// pinsFlags: int with_soft_pin at 8, int with_hard_pin at 12.
	pinsFlags
	// pinsAction: int with_hard_pin at 8, int soft_pin_action at 32 (0 to 2, of which
	// 1 pins; others are refused), int has_soft_pin_ttl at 36, u64 soft_pin_ttl_ms at 40.
	pinsAction
)

// String names the form.
func (p pins) String() string {
	return [...]string{pinsUnknown: "none", pinsFlags: "flags", pinsAction: "action"}[p]
}

// Places in the structure, in bytes.
const (
	howReplicas = 0
	howPins     = 8
	howHardFlag = 12
	howSegments = 16
	howCount    = 24
	howAction   = 32
	howBytes    = 64 // more than either form has
)

const (
	wordBytes = 8
	// Bytes of an answer.
	answer32, answer64 = 4, 8
	// unsaid is what answers are made of before the library writes them: -1.
	unsaid = 0xff
)

// block is the arguments of one call, in one piece of memory that C reads: arrays of
// pointers into it and into the registered memory, the answers, and the text of keys.
// The piece is addressed by numbers: nothing in it is a pointer of Go's.
//
//	keys n*8 | buffers n*8 | sizes n*8 | answers n*8 | how 64 | segments m*8 | text
//
// buffers and sizes are there for transfers only, how and segments for puts.
type block struct {
	n                                                   int
	keys, buffers, sizes, answers, how, segments, total int
	text                                                int // where the next text goes
	b                                                   []byte
	base                                                uint64 // the address of b
}

// plan returns the places of a call's parts; the block has no memory yet. how is nil
// but for a put, and transfer for what has objects.
func plan(n, textBytes int, transfer bool, how *mooncake.Replication) *block {
	p := &block{n: n}
	at := 0
	take := func(bytes int) int {
		from := at
		at += bytes
		return from
	}
	p.keys = take(n * wordBytes)
	if transfer {
		p.buffers, p.sizes = take(n*wordBytes), take(n*wordBytes)
	}
	p.answers = take(n * wordBytes)
	if how != nil {
		p.how = take(howBytes)
		p.segments = take(len(how.PreferredSegments) * wordBytes)
		for _, name := range how.PreferredSegments {
			textBytes += len(name) + 1
		}
	}
	p.text = take(textBytes)
	p.total = at
	return p
}

// textOf is how much text keys are, each with a zero behind it.
func textOf(keys []string) (bytes int) {
	for _, key := range keys {
		bytes += len(key) + 1
	}
	return bytes
}

// textOfObjects is textOf their keys.
func textOfObjects(objects []mooncake.Object) (bytes int) {
	for i := range objects {
		bytes += len(objects[i].Key) + 1
	}
	return bytes
}

func (p *block) word(at int, value uint64) { binary.NativeEndian.PutUint64(p.b[at:], value) }

// string writes a text with a zero behind it, and returns its address.
func (p *block) string(text string) uint64 {
	at := p.text
	p.text += copy(p.b[at:], text) + 1
	p.b[p.text-1] = 0
	return p.base + uint64(at)
}

// fillKeys writes keys, and answers that say nothing: a library that leaves one out
// has failed, not succeeded.
func (p *block) fillKeys(key func(i int) string) {
	for i := range p.n {
		p.word(p.keys+i*wordBytes, p.string(key(i)))
	}
	answers := p.b[p.answers:][:p.n*wordBytes]
	for i := range answers {
		answers[i] = unsaid
	}
}

// fillObjects writes where the objects are, memory being the address of what their
// ranges are of.
//
// REQUIRES: mooncake.CheckObjects.
func (p *block) fillObjects(memory uint64, objects []mooncake.Object) {
	for i := range objects {
		p.word(p.buffers+i*wordBytes, memory+objects[i].Range.Offset)
		p.word(p.sizes+i*wordBytes, objects[i].Range.Bytes)
	}
}

// fillHow writes how objects are kept.
//
// REQUIRES: native.CheckHow.
func (p *block) fillHow(form pins, how *mooncake.Replication) {
	s := p.b[p.how:][:howBytes]
	clear(s)
	flag := func(at int, set bool) {
		if set {
			binary.NativeEndian.PutUint32(s[at:], 1)
		}
	}
	binary.NativeEndian.PutUint64(s[howReplicas:], uint64(max(how.Replicas, 1)))
	switch form {
	case pinsUnknown:
	case pinsFlags:
		flag(howPins, how.SoftPin)
		flag(howHardFlag, how.HardPin)
	case pinsAction:
		flag(howPins, how.HardPin)
		flag(howAction, how.SoftPin)
	}
	if len(how.PreferredSegments) == 0 {
		return
	}
	for i, name := range how.PreferredSegments {
		p.word(p.segments+i*wordBytes, p.string(name))
	}
	binary.NativeEndian.PutUint64(s[howSegments:], p.base+uint64(p.segments))
	binary.NativeEndian.PutUint64(s[howCount:], uint64(len(how.PreferredSegments)))
}

// readAnswers reads answers of that many bytes each. most is the largest that makes
// sense for a key: what is larger is of a library that is not the one we know.
func (p *block) readAnswers(op string, width int, most func(i int) uint64) ([]mooncake.Answer, error) {
	answers := make([]mooncake.Answer, p.n)
	for i := range answers {
		at := p.b[p.answers+i*width:]
		var value int64
		if width == answer32 {
			value = int64(int32(binary.NativeEndian.Uint32(at)))
		} else {
			value = int64(binary.NativeEndian.Uint64(at))
		}
		if value > 0 && uint64(value) > most(i) {
			return nil, &mooncake.Error{Op: op, Code: mooncake.CodeInternal, Text: fmt.Sprintf("the library answers %d, at most %d makes sense", value, most(i))}
		}
		answers[i] = mooncake.Answer(value)
	}
	return answers, nil
}

// conclude returns the answers of a call whose own code is that.
func (p *block) conclude(op string, code, width int, most func(i int) uint64) ([]mooncake.Answer, error) {
	if code != 0 {
		return nil, &mooncake.Error{Op: op, Code: mooncake.Code(code), Text: "the call failed as a whole"}
	}
	return p.readAnswers(op, width, most)
}
