package missratio

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
)

// Scope is what the chunks of a lookup have in common.
type Scope struct {
	// Salt tells namespaces apart: it is mixed into every key.
	Salt uint64
	// ChunkBytes is the memory that one of the chunks takes, all shards and
	// groups together.
	ChunkBytes uint64
}

// sample is a chunk that passed the threshold. Those of one request are in the
// order of its chain.
type sample struct {
	key   uint64
	depth uint32
}

// request is a lookup with its samples.
type request struct {
	samples int // end in batch.samples
	chunks  int // asked for, sampled or not
	scope   Scope
}

// batch is what a tap gathered.
type batch struct {
	samples  []sample
	requests []request
}

func (b *batch) reset() { b.samples, b.requests = b.samples[:0], b.requests[:0] }

const (
	// keyBytes of a hash are the key.
	keyBytes    = 8
	maxSamples  = 1 << 15
	maxRequests = 1 << 12
)

// Tap gathers samples on the lookup path. It is safe for concurrent use. It
// never waits: what finds it busy or full is left out, as if it had not been.
type Tap struct {
	// threshold: keys below it are sampled. 0: none, only requests are counted.
	threshold atomic.Uint64
	left      atomic.Uint64

	mu  sync.Mutex // never waited for by Lookup
	out batch
}

// Lookup notes that a request asks for a chain of chunks: the root first, each
// named by the eight bytes at the start of each stride. The
// last stride may be cut off behind these.
func (t *Tap) Lookup(scope Scope, hashes []byte, stride int) {
	if stride < keyBytes || len(hashes) < keyBytes || scope.ChunkBytes == 0 {
		return
	}
	threshold := t.threshold.Load()
	if !t.mu.TryLock() {
		t.left.Add(1)
		return
	}
	defer t.mu.Unlock()
	if len(t.out.requests) == maxRequests {
		t.left.Add(1)
		return
	}
	before := len(t.out.samples)
	// The loop is what a lookup pays for the curve.
	for at, salt := 0, scope.Salt; at <= len(hashes)-keyBytes; at += stride {
		key := binary.LittleEndian.Uint64(hashes[at:]) ^ salt
		if key >= threshold {
			continue
		}
		if len(t.out.samples) == maxSamples {
			t.out.samples = t.out.samples[:before]
			t.left.Add(1)
			return
		}
		t.out.samples = append(t.out.samples, sample{key: key, depth: uint32(at / stride)})
	}
	t.out.requests = append(t.out.requests, request{samples: len(t.out.samples), chunks: (len(hashes)-keyBytes)/stride + 1, scope: scope})
}

// LeftOut is the number of lookups that were not noted.
func (t *Tap) LeftOut() uint64 { return t.left.Load() }

// take exchanges what was gathered for an empty batch.
func (t *Tap) take(empty batch) batch {
	t.mu.Lock()
	defer t.mu.Unlock()
	full := t.out
	t.out = empty
	return full
}
