package disk

import (
	"fmt"
	"log/slog"
	"math/bits"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/evict"
)

// Options are the tier's settings. Zero values mean the defaults.
type Options struct {
	// Bytes is the size that the data file may reach. REQUIRES: at least MinBytes.
	Bytes uint64
	// WriteBytesPerSecond bounds what is written; 0: no bound.
	WriteBytesPerSecond uint64
	// RegionBytes is a region's length. Default: a 64th of the file, 8 MiB to
	// 256 MiB. A chunk that is longer than a region is not kept.
	RegionBytes uint64
	// NewPolicy makes the eviction policy of regions. Default: LRU.
	NewPolicy func(regions int) evict.Policy
	// Readers is how many reads run at a time. Default 4.
	Readers int
	// BufferBytes is the length of a lane's buffer, the most that one call moves.
	// Default 4 MiB.
	BufferBytes int
	// QueueBytes bounds the chunks that wait to be written. Default 64 MiB.
	QueueBytes uint64
	// ReadDeadline and WriteDeadline bound a call of at most BufferBytes. Defaults
	// 1s and 2s.
	ReadDeadline, WriteDeadline time.Duration
	// ScanDeadline bounds the look through the file at the start; what was not seen
	// by then, the oldest, is given up. Default 30s.
	ScanDeadline time.Duration
	// Patience is the time in which what a lookup promises should be in memory.
	// Default 2s.
	Patience time.Duration
	// ReadTook and WriteTook, if not nil, are told how long each call took that
	// reads or writes chunks, one that failed or was too late included. Calls run
	// side by side.
	ReadTook, WriteTook func(time.Duration)
	// Now is the clock of expiry, deadlines between calls, and rates. Default
	// time.Now.
	Now func() time.Time
	// Log receives what an operator should know. Default slog.Default().
	Log *slog.Logger

	// leastPrune is the shortest list of removals that is looked through for what
	// voids nothing any more. Default 4096; tests have it shorter.
	leastPrune int
}

const (
	// MinBytes is the smallest tier.
	MinBytes = 64 << 20
	// bytesPerEntry sizes the catalog: one chunk for every 64 KiB of the file.
	bytesPerEntry = 64 << 10
	minEntries    = 1 << 10
	maxEntries    = 1 << 22
	minRegions    = 4
	maxRegions    = 1 << 20
	// maxWaiting bounds the queues, besides their bytes.
	maxWaiting = 1 << 13
)

func (o *Options) setDefaults() {
	if o.RegionBytes == 0 {
		o.RegionBytes = min(max(uint64(1)<<(bits.Len64(max(o.Bytes/64, 1))-1), 8<<20), 256<<20)
	}
	if o.NewPolicy == nil {
		o.NewPolicy = func(regions int) evict.Policy { return evict.NewLRU(regions) }
	}
	if o.Readers == 0 {
		o.Readers = 4
	}
	if o.BufferBytes == 0 {
		o.BufferBytes = 4 << 20
	}
	if o.QueueBytes == 0 {
		o.QueueBytes = 64 << 20
	}
	if o.ReadDeadline == 0 {
		o.ReadDeadline = time.Second
	}
	if o.WriteDeadline == 0 {
		o.WriteDeadline = 2 * time.Second
	}
	if o.ScanDeadline == 0 {
		o.ScanDeadline = 30 * time.Second
	}
	if o.Patience == 0 {
		o.Patience = 2 * time.Second
	}
	if o.leastPrune == 0 {
		o.leastPrune = 1 << 12
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
}

func (o *Options) validate() error {
	switch {
	case o.RegionBytes%PageBytes != 0 || o.RegionBytes < minRegionBytes || o.RegionBytes > maxRegionBytes:
		return fmt.Errorf("disk tier: regions of %d bytes; want a multiple of %d from %d to %d", o.RegionBytes, PageBytes, minRegionBytes, maxRegionBytes)
	case o.BufferBytes%PageBytes != 0 || o.BufferBytes <= 0:
		return fmt.Errorf("disk tier: buffers of %d bytes; want a multiple of %d", o.BufferBytes, PageBytes)
	case o.regions(o.RegionBytes) < minRegions:
		return fmt.Errorf("%w: %d bytes are fewer than %d regions of %d; raise disk_bytes", ErrTooSmall, o.Bytes, minRegions, o.RegionBytes)
	case o.regions(o.RegionBytes) > maxRegions:
		return fmt.Errorf("disk tier: more than %d regions of %d bytes", maxRegions, o.RegionBytes)
	}
	return nil
}

// regions is how many regions of the length the file may have.
func (o *Options) regions(regionBytes uint64) uint64 {
	return (max(o.Bytes, regionsAt) - regionsAt) / regionBytes
}
