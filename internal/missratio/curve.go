package missratio

import (
	"math"

	"github.com/mooncake-sidecar/sidecar/internal/evict"
)

// Options are a curve's settings.
type Options struct {
	// NewPolicy makes the policy that is in force, for records [0, records).
	// REQUIRES: not nil.
	NewPolicy func(records int) evict.Policy
	// Factors are the multiples of the memory that the curve is asked for. Nil:
	// 1/4, 1/2, 1, 2, 4.
	Factors []float64
	// Records bounds the chunks that stand for the memory as it is. The small
	// store of a factor has room for that many times the factor, and takes some 130
	// bytes for each: 9 MB with the defaults. 0: 8192.
	Records int
}

// Point is one point of the curve.
type Point struct {
	// Factor times the memory is what the point is for.
	Factor float64
	// Chunks were asked for and Hits of them would have been found, since the
	// curve began, the sample counted up to the whole. Neither ever falls.
	Chunks, Hits float64
	// HitRatio is that of the recent past: half of its weight is on the last
	// recentChunks sampled chunks. NaN before there are any.
	HitRatio float64
}

// slack is how far a capacity may grow, in powers of two, before the rate changes.
const slack = 0.125

// recentChunks is the memory of Point.HitRatio, in sampled chunks.
const recentChunks = 1 << 16

// Curve runs the scaled-down stores. It is not safe for concurrent use; the tap
// is.
type Curve struct {
	opts  Options
	tap   *Tap
	spare batch

	capacity   uint64  // bytes of the memory as it is
	chunkBytes float64 // mean of the recent requests
	shift      uint    // one key of 2^shift is sampled
	sizes      []size
}

// size is a multiple of the memory.
type size struct {
	factor       float64
	store        *store
	chunks, hits float64 // whole
	told         float64 // hits, as last reported
	recent       [2]float64
}

// New returns a curve and the tap that feeds it. It samples nothing before it
// knows the capacity.
func New(opts Options) (*Curve, *Tap) {
	if opts.Factors == nil {
		opts.Factors = []float64{0.25, 0.5, 1, 2, 4}
	}
	if opts.Records == 0 {
		opts.Records = 8192
	}
	c := &Curve{opts: opts, tap: &Tap{}}
	for _, f := range opts.Factors {
		c.sizes = append(c.sizes, size{factor: f})
	}
	return c, c.tap
}

// Drain plays what the tap gathered into the small stores. capacityBytes is what
// the memory holds now. Call it about once a second, from one goroutine.
func (c *Curve) Drain(capacityBytes uint64) {
	got := c.tap.take(c.spare)
	c.observe(got.requests)
	if !c.resize(capacityBytes) {
		// What was gathered was sampled at another rate.
		got.requests = got.requests[:0]
	}
	begin := 0
	for i := range got.requests {
		r := &got.requests[i]
		c.play(r, got.samples[begin:r.samples])
		begin = r.samples
	}
	got.reset()
	c.spare = got
}

// observe keeps the mean size of a chunk.
func (c *Curve) observe(requests []request) {
	var chunks, bytes float64
	for i := range requests {
		chunks += float64(requests[i].chunks)
		bytes += float64(requests[i].chunks) * float64(requests[i].scope.ChunkBytes)
	}
	switch {
	case chunks == 0:
	case c.chunkBytes == 0:
		c.chunkBytes = bytes / chunks
	default:
		weight := chunks / (chunks + recentChunks)
		c.chunkBytes += weight * (bytes/chunks - c.chunkBytes)
	}
}

// resize follows the capacity. When the small stores would be too large for their
// records, or half as large as planned, they begin anew, at another rate, and it
// returns false.
func (c *Curve) resize(capacityBytes uint64) bool {
	if capacityBytes == 0 || c.chunkBytes == 0 {
		return false
	}
	perRecord := float64(capacityBytes) / c.chunkBytes / float64(c.opts.Records)
	exact := math.Log2(max(perRecord, 1))
	over := exact - float64(c.shift) // from -1 to 0 when it began
	same := c.capacity != 0 && over <= slack && over >= -1-slack
	if !same {
		c.begin(uint(math.Ceil(exact)))
	}
	if capacityBytes != c.capacity {
		c.capacity = capacityBytes
		for i := range c.sizes {
			s := &c.sizes[i]
			s.store.capacity = uint64(float64(capacityBytes) * s.factor / float64(uint64(1)<<c.shift))
			s.store.shrink()
		}
	}
	return same
}

// begin makes empty small stores for a rate of one key in 2^shift.
func (c *Curve) begin(shift uint) {
	c.shift, c.capacity = shift, 0
	for i := range c.sizes {
		records := int(math.Ceil(math.Exp2(slack) * c.sizes[i].factor * float64(c.opts.Records)))
		c.sizes[i].store = newStore(c.opts.NewPolicy(records), records)
	}
	c.tap.threshold.Store(math.MaxUint64 >> shift)
}

// play runs one request.
//
// A key that every request has counts far too much if it is sampled, and not at
// all if not. The number of chunks asked for is known, so the samples that are
// missing from it, or too many, are taken to be such keys, which are hits.
func (c *Curve) play(r *request, samples []sample) {
	scale := float64(uint64(1) << c.shift)
	excess := float64(r.chunks) - scale*float64(len(samples))
	for i := range c.sizes {
		s := &c.sizes[i]
		hits := scale*float64(s.store.request(samples, r.scope.ChunkBytes)) + excess
		s.chunks += float64(r.chunks)
		s.hits += hits
		s.recent[0] += float64(r.chunks)
		s.recent[1] += hits
		if s.recent[0] >= recentChunks*scale {
			s.recent[0] /= 2
			s.recent[1] /= 2
		}
	}
}

// Points returns the curve, by rising factor as in Options.
func (c *Curve) Points() []Point {
	points := make([]Point, len(c.sizes))
	for i := range c.sizes {
		s := &c.sizes[i]
		s.told = max(s.told, min(s.hits, s.chunks))
		points[i] = Point{Factor: s.factor, Chunks: s.chunks, Hits: s.told, HitRatio: math.NaN()}
		if s.recent[0] > 0 {
			points[i].HitRatio = min(max(s.recent[1]/s.recent[0], 0), 1)
		}
	}
	return points
}
