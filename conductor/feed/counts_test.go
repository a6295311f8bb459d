package feed

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// What operators see of replays: how many were asked for, how many nobody answered, which
// gaps have stayed.
func TestReplaysAreCounted(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		f := follows(t, p, nil)
		defer f.stop()
		p.tell(t, false, stored(1))
		p.tell(t, true, stored(2))
		p.tell(t, false, stored(3))
		synctest.Wait()
		if s := f.Status(); s.Replays != 2 || s.Unanswered != 0 || s.Lost != 0 || s.Gaps != 1 {
			t.Errorf("%d replays, %d of them unanswered, %d lost of %d gaps", s.Replays, s.Unanswered, s.Lost, s.Gaps)
		}
		p.refuse(true)
		p.tell(t, true, stored(4))
		p.tell(t, false, stored(5))
		wait(f.cfg.Times.Answer)
		s := f.Status()
		if s.Replays != 3 || s.Unanswered != 1 || s.Lost != 1 || s.Gaps != 2 {
			t.Errorf("%d replays, %d of them unanswered, %d lost of %d gaps", s.Replays, s.Unanswered, s.Lost, s.Gaps)
		}
		if asked := uint64(len(p.asked())); asked != s.Replays {
			t.Errorf("%d replays, and %d were asked for", s.Replays, asked)
		}
	})
}

// The delay of what comes live is summed up; what is replayed has none, nor has what a clock
// says that is of another time.
func TestDelayOfLiveBatches(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		at := func(ago time.Duration, lost bool, block uint32) {
			p.tellBatch(t, lost, &kvevents.Batch{Time: float64(time.Now().Add(-ago).UnixMicro()) / 1e6, Events: []kvevents.Event{stored(block)}})
		}
		at(time.Minute, false, 1) // it comes by the first replay
		f := follows(t, p, nil)
		defer f.stop()
		at(2*time.Second, false, 2)
		synctest.Wait()
		at(4*time.Second, false, 3)
		at(-time.Second, false, 4) // its clock is ahead
		at(24*time.Hour, false, 5)
		p.tellBytes(false, []byte{0xc1})
		at(time.Minute, true, 6)
		at(time.Minute, false, 7) // behind a gap: a replay brings it
		synctest.Wait()
		if s := f.Status(); s.Live != 3 || s.Delay.Round(time.Millisecond) != 6*time.Second || s.Next != 8 {
			t.Errorf("%d live, %v together, %d next", s.Live, s.Delay, s.Next)
		}
	})
}

// What comes faster than it is taken is counted.
func TestOverrunIsCounted(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		f := follows(t, p, nil)
		defer f.stop()
		p.tell(t, false, stored(1, 2))
		synctest.Wait()
		f.gate.Lock()
		for range 2 * maxWaiting {
			p.tellBytes(false, p.buffer[0])
		}
		f.gate.Unlock()
		synctest.Wait()
		if s := f.Status(); s.Overrun == 0 || s.Overrun > 2*maxWaiting {
			t.Errorf("%d of %d messages", s.Overrun, 2*maxWaiting)
		}
	})
}
