package daemon

import (
	"os"
	"runtime"
	"runtime/debug"
)

const (
	// memoryFloor is the soft limit of a small daemon.
	memoryFloor = 57 << 20
	// memoryRoom is what a daemon may need beside the tables it starts with. The
	// miss-ratio curve, which begins later, takes 9 MiB of it.
	memoryRoom = 33 << 20
	// gcPercent keeps the heap close to what is alive: daemons allocate little.
	gcPercent = 50
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
