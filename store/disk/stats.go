package disk

// Stats is what the tier did since it started, and its state.
type Stats struct {
	// State is starting, scanning, in service, out of service, on probation or
	// closed.
	State string
	// InService: chunks are looked up, read and written.
	InService bool

	// Counters.
	WrittenChunks, WrittenBytes uint64 // bytes with headers and padding
	ReadChunks, ReadBytes       uint64
	// Refused are demotions that were not begun, by reason.
	Refused [refusals]uint64
	// Evicted are chunks that were given up with their region; Removed those that
	// were taken out one by one.
	Evicted, Removed uint64
	// Errors by ErrorKind.
	Errors [ErrorKinds]uint64
	// Opened counts how often the disk was taken out of service.
	Opened uint64
	// LateReads were not begun, because they had waited too long.
	LateReads uint64

	// Gauges.
	CapacityBytes, UsedBytes     uint64 // of the file: configured, and of regions written to
	Chunks                       int
	QueuedBytes, FetchingBytes   uint64
	ReadBytesPerSecond           uint64 // as lookups reckon with
	ScanRegions, ScannedRegions  uint64
	RecoveredChunks, DroppedOnes uint64 // by the look through the file at the start
	CatalogBytes                 uint64
}

// Refusal is why a demotion was not begun.
type Refusal uint8

// The reasons.
const (
	// RefusedState: the disk is not in service.
	RefusedState Refusal = iota
	// RefusedQueue: more waits to be written than the rate or the disk lets
	// through.
	RefusedQueue
	// RefusedSize: the chunk is longer than a region.
	RefusedSize
	// RefusedName: the tier can't tell more namespaces or salt tags apart.
	RefusedName
	refusals
)

// Refusals is the number of reasons.
const Refusals = refusals

// String returns the reason's name in metrics.
func (r Refusal) String() string {
	return [refusals + 1]string{"out_of_service", "queue_full", "too_large", "too_many_names", "unknown"}[min(r, refusals)]
}

// Stats returns a snapshot.
func (t *Tier) Stats() Stats {
	t.mu.RLock()
	defer t.mu.RUnlock()
	s := t.stats
	s.State, s.InService = t.stateLocked(), t.usableLocked()
	s.Opened = t.breaker.opened
	s.CapacityBytes = t.opts.Bytes
	s.UsedBytes = uint64(t.log.unused) * t.regionBytes
	s.Chunks = t.catalog.live
	s.QueuedBytes, s.FetchingBytes = t.queuedBytes, t.fetchingBytes
	s.ReadBytesPerSecond = uint64(t.speed.expect(t.opts.Now()))
	s.CatalogBytes = uint64(len(t.catalog.entries)*entryBytes + len(t.catalog.buckets)*4)
	return s
}

func (t *Tier) stateLocked() string {
	if t.phase == serving {
		return t.breaker.state.String()
	}
	return t.phase.String()
}
