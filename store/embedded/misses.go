package embedded

import "sync/atomic"

// MissReason says why a lookup was told that a chunk can't be loaded.
type MissReason uint8

// The reasons, in the order of Stats.Missed.
const (
	// MissAbsent: nothing of it is here.
	MissAbsent MissReason = iota
	// MissPartial: some of its shards are missing.
	MissPartial
	// MissLoadFailed: a load of it has failed, and this lookup passes it over.
	MissLoadFailed
	// MissExpired: its time is up, or it is being taken away.
	MissExpired
	// MissDisk: it is on the disk, which can't bring it in time.
	MissDisk
	// MissCluster: the cluster has it, but not so much can be brought for one request.
	MissCluster
	missReasons
)

// MissReasons is the number of reasons.
const MissReasons = missReasons

// String returns the reason's name in metrics.
func (r MissReason) String() string {
	return [missReasons + 1]string{"absent", "partial", "load_failed", "expired", "disk_busy", "cluster_busy", "unknown"}[min(r, missReasons)]
}

// missCounts counts answers of lookups. Each lookup counts its own and adds them
// up here when it closes.
type missCounts [missReasons]atomic.Uint64

func (c *missCounts) add(of *[missReasons]uint32) {
	for i, n := range of {
		if n > 0 {
			c[i].Add(uint64(n))
		}
	}
}

func (c *missCounts) snapshot() (s [missReasons]uint64) {
	for i := range c {
		s[i] = c[i].Load()
	}
	return s
}
