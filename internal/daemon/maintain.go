package daemon

import (
	"context"
	"log/slog"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// maintain allocates the segment's memory and then looks after what runs out. The
// service manager is told that the daemon is ready when the first memory is
// there: all sockets are bound before maintain begins. Reap takes the store's
// lock, so that a store that is stuck stops the pulse.
func maintain(ctx context.Context, master *embedded.Master, sup *supervision, log *slog.Logger) {
	loop := sup.pulse.Join()
	defer loop.Leave()
	prepare(ctx, master, sup, loop.Beat, log)
	every := maintenanceInterval
	if sup.interval > 0 {
		every = min(every, sup.interval)
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		loop.Beat()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			master.Reap()
			tick(master, loop.Beat)
		}
	}
}

// ticks bounds the store's housekeeping at a time; each holds its lock briefly.
const ticks = 64

// tick lets the store end what its time is up for.
func tick(master *embedded.Master, beat func()) {
	for range ticks {
		if !master.Tick() {
			return
		}
		beat()
	}
}

// prepare allocates the memory, step by step. A store that gets none serves too:
// its lookups answer 0.
func prepare(ctx context.Context, master *embedded.Master, sup *supervision, beat func(), log *slog.Logger) {
	ready := false
	for more := true; more && ctx.Err() == nil; beat() {
		if !ready {
			sup.Extend(patienceForMemory)
		}
		var err error
		if more, err = master.PrepareNext(); err != nil {
			log.Error("the store stays smaller than it was asked to be; lower store_bytes or free memory", "error", err)
			break
		}
		if !ready {
			ready = true
			sup.Ready("allocating memory for the store")
		}
		master.Reap() // a large store takes a while, in which chunks expire, too
		tick(master, beat)
	}
	if ctx.Err() != nil {
		return
	}
	status := "store of " + config.Size(master.Stats().CapacityBytes).String()
	if ready {
		sup.Status(status)
	} else {
		sup.Ready(status + ", no memory could be allocated")
	}
}
