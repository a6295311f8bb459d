package daemon

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// memoryFloor is the soft limit of a small daemon.
	memoryFloor = 57 << 20
	// memoryRoom is what a daemon may need beside the tables it starts with. The
	// miss-ratio curve, which begins later, takes 9 MiB of it.
	memoryRoom = 33 << 20
	// gcPercent keeps the heap close to what is alive: daemons allocate little.
	gcPercent = 50
	// leastGCPercent is for a large index, which has no pointers and costs a collection
	// little; garbageRoom is what may pile up beside one before it comes to that.
	leastGCPercent = 15
	garbageRoom    = 32 << 20
	// trimInterval is how often it is looked how large the index has become.
	trimInterval = 200 * time.Millisecond
)

// limitMemory keeps the Go heap small: call it when the large tables stand. The
// segment is mapped, not allocated, and does not count. GOMEMLIMIT and GOGC go
// before it.
func limitMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		debug.SetMemoryLimit(max(memoryFloor, int64(m.HeapAlloc)+memoryRoom))
	}
}

// trimHeap has garbage take a smaller part of a heap the larger that is, until ctx
// ends. GOGC goes before it.
func trimHeap(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	now := gcPercent
	debug.SetGCPercent(now)
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	ticker := time.NewTicker(trimInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		metrics.Read(live)
		if live[0].Value.Kind() != metrics.KindUint64 {
			return
		}
		if percent := gcPercentOf(live[0].Value.Uint64()); percent != now {
			now = percent
			debug.SetGCPercent(now)
		}
	}
}

// gcPercentOf returns how much garbage may pile up beside live bytes, in percent of
// them.
func gcPercentOf(live uint64) int {
	return int(min(max(100*garbageRoom/max(live, 1), leastGCPercent), gcPercent)) //nolint:gosec // at most gcPercent
}
