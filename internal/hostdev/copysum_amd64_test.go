package hostdev

import (
	"encoding/binary"
	"hash/crc32"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/cpu"
)

func (k kernel) String() string { return [...]string{"portable", "xmm", "ymm", "zmm"}[k] }

// everyCopier returns those that this machine has: who has a kernel has the
// narrower ones.
func everyCopier() map[string]*copier {
	all := map[string]*copier{}
	for k := portable; k <= fastest(); k++ {
		all[k.String()] = k.copier()
	}
	return all
}

// A processor that lacks an instruction of a kernel gets the next narrower one.
func TestFastestKernelIsWhatTheProcessorHas(t *testing.T) {
	if fastest() != zmm {
		t.Skipf("needs a processor with all of it, this one has %s", fastest())
	}
	features := cpu.X86
	t.Cleanup(func() { cpu.X86 = features })
	for name, c := range map[string]struct {
		off  []*bool
		want kernel
	}{
		"all":             {nil, zmm},
		"no AVX-512":      {[]*bool{&cpu.X86.HasAVX512F, &cpu.X86.HasAVX512VPCLMULQDQ}, ymm},
		"no wide folding": {[]*bool{&cpu.X86.HasAVX512VPCLMULQDQ}, ymm}, // ymm asks the processor itself
		"no AVX2":         {[]*bool{&cpu.X86.HasAVX512F, &cpu.X86.HasAVX2}, xmm},
		"no folding":      {[]*bool{&cpu.X86.HasPCLMULQDQ}, portable},
		"no SSE 4.2":      {[]*bool{&cpu.X86.HasSSE42}, portable},
	} {
		cpu.X86 = features
		for _, feature := range c.off {
			*feature = false
		}
		if got := fastest(); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// The multiplier that moves on by so many bytes does what as many zeros do.
func TestFoldsMoveOn(t *testing.T) {
	for k := xmm; k <= zmm; k++ {
		f := newFolds(k)
		for _, c := range []struct {
			bytes int
			by    [2]uint64
		}{{k.registerBytes() * accumulators, f.round}, {k.registerBytes(), f.next}} {
			for half := range 2 {
				var one [16]byte
				one[8*half+7] = 0x80 // the last bit of the half: x^0 of its own
				want := crc32.Update(^uint32(0), castagnoli(), append(one[:], make([]byte, c.bytes)...))
				// One times the multiplier, in its place one bit further on.
				var folded [16]byte
				binary.LittleEndian.PutUint64(folded[:], c.by[half]<<63)
				binary.LittleEndian.PutUint64(folded[8:], c.by[half]>>1)
				if got := crc32.Update(^uint32(0), castagnoli(), folded[:]); got != want {
					t.Errorf("%s, %d bytes, half %d: %#x, want %#x", k, c.bytes, half, got, want)
				}
			}
		}
	}
}

// The sum is of the words that were written, whatever another process does to
// the source meanwhile: what was verified is what arrived.
func TestEachWordIsReadOnce(t *testing.T) {
	for k := xmm; k <= fastest(); k++ {
		t.Run(k.String(), func(t *testing.T) {
			var words [1024]atomic.Uint64
			src, dst := viewOf(words[:]), make([]byte, 8*len(words))
			var stop atomic.Bool
			var writer sync.WaitGroup
			writer.Go(func() {
				for n := uint64(1); !stop.Load(); n++ {
					for i := range words {
						words[i].Store(n)
					}
				}
			})
			c := k.copier()
			for range 5000 {
				if got, want := c.copySum(dst, src, 0, 0), crc32.Checksum(dst, castagnoli()); got != want {
					t.Errorf("sum %#x, written was %#x", got, want)
					break
				}
			}
			stop.Store(true)
			writer.Wait()
		})
	}
}
