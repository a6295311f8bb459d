package level

import (
	"context"
	"sync"
	"time"
)

// Run puts and gets until ctx ends, and looks after a cluster that does not answer.
// Everything that was taken has been answered when it returns. The client's engine
// must run beside it, and end after it began to: its end is what ends a transfer
// that hangs.
//
// REQUIRES: it is called once.
func (l *Level) Run(ctx context.Context) {
	var loops sync.WaitGroup
	for range putters {
		loops.Go(func() { l.runPuts(ctx) })
	}
	for range getters {
		loops.Go(func() { l.runGets(ctx) })
	}
	loops.Go(func() { l.runRenewals(ctx) })
	loops.Go(func() { l.watch(ctx) })
	loops.Go(func() { l.judge(ctx) })
	l.heal(ctx)
	loops.Wait()
	l.usable.Store(false)
	l.mu.Lock()
	l.ended = true
	puts, gets := l.puts.waiting, l.gets.waiting
	l.puts.waiting, l.gets.waiting = nil, nil
	l.mu.Unlock()
	l.asking.Wait()
	l.keepNotes()
	for _, p := range puts {
		l.finishPut(p, errEnded)
	}
	for _, f := range gets {
		l.finishGet(f, nil, errEnded)
	}
}

// heal follows whether the cluster answers. One that does not is asked now and
// then, whether anybody wants something of it or not, and what is owed to it is
// made up for.
func (l *Level) heal(ctx context.Context) {
	ticker := time.NewTicker(healInterval)
	defer ticker.Stop()
	for {
		if err := l.client.Reach(ctx); err == nil && l.client.Health().Ready {
			if !l.usable.Load() {
				l.beginEra()
				l.usable.Store(true)
				l.opts.Log.Info("the Mooncake cluster is in service")
			}
		} else {
			l.lose()
		}
		l.keepNotes()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// beginEra notes that the cluster may have lost what it had.
func (l *Level) beginEra() {
	l.known.forget()
	if l.eras.Add(1) > 1 && !l.toldSince(l.beatMS.Load()) {
		l.forgetTold(ForgottenEra)
	}
}

// watch finds out that a cluster which nobody asks has stopped to answer, or has begun
// anew so quickly that nobody has seen it gone.
func (l *Level) watch(ctx context.Context) {
	ticker := time.NewTicker(min(watchInterval, l.opts.Lease/4))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if !l.inService() {
			continue
		}
		asked := l.nowMS()
		switch forgot, err := l.client.Beat(ctx); {
		case err != nil:
			l.check()
		case !forgot:
			l.beatMS.Store(asked)
		case l.inService():
			l.beginEra()
			l.opts.Log.Warn("the Mooncake cluster has lost what this node had put; it is put again when it is used")
		}
	}
}

// check looks whether the cluster is in service after a call that failed, so that
// the next lookup does not ask.
func (l *Level) check() {
	if !l.client.Health().Ready {
		l.lose()
	}
}

// lose takes the cluster out of service.
func (l *Level) lose() {
	if l.usable.Swap(false) {
		l.opts.Log.Warn("the Mooncake cluster is out of service; the node goes on with what it has", "reason", l.client.Health().Reason)
	}
}

// Problem says why the cluster is not in service, "" while it is.
func (l *Level) Problem() string {
	if l.inService() {
		return ""
	}
	if reason := l.client.Health().Reason; reason != "" {
		return reason
	}
	return "it has not answered yet"
}
