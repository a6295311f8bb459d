package mooncakec

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/native"
)

// reader reads a block as C does: by addresses.
type reader struct {
	t    *testing.T
	b    []byte
	base uint64
}

func (r *reader) word(at uint64) uint64 {
	r.t.Helper()
	if at < r.base || at+8 > r.base+uint64(len(r.b)) || at%8 != 0 {
		r.t.Fatalf("a word at %#x, the block is %#x +%d", at, r.base, len(r.b))
	}
	return binary.NativeEndian.Uint64(r.b[at-r.base:])
}

func (r *reader) text(at uint64) string {
	r.t.Helper()
	if at < r.base || at >= r.base+uint64(len(r.b)) {
		r.t.Fatalf("a text at %#x, the block is %#x +%d", at, r.base, len(r.b))
	}
	text, _, ended := bytes.Cut(r.b[at-r.base:], []byte{0})
	if !ended {
		r.t.Fatal("a text without an end")
	}
	return string(text)
}

// FuzzBlock: C finds in a block what was put in it, and nothing else; what is written
// over the answers is what is read.
func FuzzBlock(f *testing.F) {
	f.Add("a,bc,@", "s:1", uint64(0), uint64(1), 3, true, []byte{0, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Add("key", "", uint64(1<<40), uint64(1<<20), 1, false, []byte{})
	f.Add("", "a:1,b:2", uint64(7), uint64(9), 0, true, []byte{1})
	f.Fuzz(func(t *testing.T, joined, segments string, offset, size uint64, replicas int, pin bool, said []byte) {
		const memory, memoryBytes = 0x7f0000001000, uint64(1) << 41
		var objects []mooncake.Object
		for i, key := range strings.Split(joined, ",") {
			objects = append(objects, mooncake.Object{Key: key, Range: mooncake.Range{Offset: offset, Bytes: size + uint64(i)}})
		}
		how := mooncake.Replication{Replicas: replicas, SoftPin: pin, HardPin: !pin}
		if segments != "" {
			how.PreferredSegments = strings.Split(segments, ",")
		}
		if mooncake.CheckObjects(memoryBytes, objects) != nil || native.CheckHow(&how) != nil {
			return // refused before there is a block
		}
		p := plan(len(objects), textOfObjects(objects), true, &how)
		r := &reader{t, make([]byte, p.total), 0x1000_0000}
		p.b, p.base = r.b, r.base
		p.fillKeys(func(i int) string { return objects[i].Key })
		p.fillObjects(memory, objects)
		for form, want := range map[pins][2]uint64{
			pinsUnknown: {0, 0}, pinsFlags: {flagWord(pin, !pin), 0}, pinsAction: {flagWord(!pin, false), flagWord(pin, false)},
		} {
			text := p.text
			p.fillHow(form, &how)
			p.text = text
			at := r.base + uint64(p.how)
			if got := r.word(at); got != uint64(max(replicas, 1)) {
				t.Errorf("%d replicas, want %d", got, replicas)
			}
			if flags, action := r.word(at+howPins), r.word(at+howAction); flags != want[0] || action != want[1] || r.word(at+40) != 0 {
				t.Errorf("%s: %#x and %#x, want %#x and %#x", form, flags, action, want[0], want[1])
			}
			count := r.word(at + howCount)
			if count != uint64(len(how.PreferredSegments)) {
				t.Fatalf("%d segments, want %d", count, len(how.PreferredSegments))
			}
			for i := range count {
				if got := r.text(r.word(r.word(at+howSegments) + i*8)); got != how.PreferredSegments[i] {
					t.Errorf("segment %q, want %q", got, how.PreferredSegments[i])
				}
			}
		}
		for i := range objects {
			at := r.base + uint64(i)*8
			if got := r.text(r.word(at + uint64(p.keys))); got != objects[i].Key {
				t.Errorf("key %q, want %q", got, objects[i].Key)
			}
			if got := r.word(at + uint64(p.buffers)); got != memory+objects[i].Range.Offset {
				t.Errorf("buffer %#x, want %#x", got, memory+objects[i].Range.Offset)
			}
			if got := r.word(at + uint64(p.sizes)); got != objects[i].Range.Bytes {
				t.Errorf("size %d, want %d", got, objects[i].Range.Bytes)
			}
		}
		checkAnswers(t, p, objects, said)
	})
}

// flagWord is two ints of C, one behind the other.
func flagWord(first, second bool) (word uint64) {
	var b [8]byte
	if first {
		binary.NativeEndian.PutUint32(b[:], 1)
	}
	if second {
		binary.NativeEndian.PutUint32(b[4:], 1)
	}
	return binary.NativeEndian.Uint64(b[:])
}

func checkAnswers(t *testing.T, p *block, objects []mooncake.Object, said []byte) {
	most := func(i int) uint64 { return objects[i].Range.Bytes }
	answers, err := p.readAnswers("get", answer64, most)
	if err != nil || slices.ContainsFunc(answers, func(a mooncake.Answer) bool { return a.Code() != mooncake.CodeInternal }) {
		t.Errorf("unsaid: %v, %v", answers, err)
	}
	before := slices.Clone(p.b)
	n := copy(p.b[p.answers:][:8*p.n], said)
	if !bytes.Equal(p.b[:p.answers], before[:p.answers]) || !bytes.Equal(p.b[p.answers+n:], before[p.answers+n:]) {
		t.Error("answers overlap other parts")
	}
	for _, width := range []int{answer32, answer64} {
		answers, err := p.readAnswers("get", width, most)
		if err != nil {
			continue
		}
		for i, a := range answers {
			if a > 0 && uint64(a) > most(i) || a < 0 && a.Code() >= 0 {
				t.Errorf("answer %d is %d (%s), at most %d makes sense", i, a, a.Code(), most(i))
			}
		}
	}
}

// TestAnswerWidths: both kinds of answers, to the bit.
func TestAnswerWidths(t *testing.T) {
	p := plan(2, 0, false, nil)
	p.b = make([]byte, p.total)
	binary.NativeEndian.PutUint32(p.b[p.answers:], 1)
	binary.NativeEndian.PutUint32(p.b[p.answers+4:], 0xfffffd40)
	if got, err := p.readAnswers("exist", answer32, func(int) uint64 { return 1 }); err != nil || !slices.Equal(got, []mooncake.Answer{1, -704}) {
		t.Errorf("%v, %v", got, err)
	}
	binary.NativeEndian.PutUint64(p.b[p.answers:], 1<<40)
	binary.NativeEndian.PutUint64(p.b[p.answers+8:], ^uint64(799))
	if got, err := p.readAnswers("get", answer64, func(int) uint64 { return 1 << 40 }); err != nil || !slices.Equal(got, []mooncake.Answer{1 << 40, -800}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := p.readAnswers("get", answer64, func(int) uint64 { return 1<<40 - 1 }); err == nil {
		t.Errorf("%v, want an error", got)
	}
}
