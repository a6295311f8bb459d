package feed

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

// farRetry waits until so many questions were left unanswered that the next one is far, and
// returns when it is due: twice as late each time.
func farRetry(f *followed) time.Duration {
	const unanswered = 5
	for f.Status().Unanswered < unanswered {
		wait(time.Second)
	}
	return time.Second << (unanswered - 1)
}

// lose has a gap that nobody answers for.
func lose(t *testing.T, f *followed, p *publisher) {
	t.Helper()
	p.tell(t, false, stored(1))
	synctest.Wait()
	p.refuse(true)
	p.tell(t, true, stored(2))
	p.tell(t, false, stored(3))
	synctest.Wait()
}

// What was lost is asked for again when it is due, though gaps are found and filled more often
// than that.
func TestGapsDoNotPutARetryOff(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		f := follows(t, p, nil)
		defer f.stop()
		lose(t, f, p)
		every := farRetry(f) / 2
		p.refuse(false)
		for block := uint32(10); block < 16; block++ {
			p.tell(t, true, stored(block))
			p.tell(t, false, stored(block))
			wait(every)
		}
		f.expect(2, contract.Complete, 1)
		f.expect(2, contract.Complete, 15)
	})
}

// What comes due while another replay is awaited is asked for when that one has ended, whether
// anybody answered it or not.
func TestRetryBehindAReplay(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		f := follows(t, p, nil)
		defer f.stop()
		lose(t, f, p)
		wait(farRetry(f) - time.Second)
		p.tell(t, true, stored(4))
		p.tell(t, false, stored(5))
		synctest.Wait()
		asked := len(p.asked())
		wait(2 * time.Second)
		p.tell(t, false, stored(6)) // it wakes the feed
		wait(f.cfg.Times.Answer - 3*time.Second)
		if n := len(p.asked()); n != asked {
			t.Errorf("%d questions more, in place of the one that is awaited", n-asked)
		}
		p.refuse(false)
		wait(time.Second)
		f.expect(2, contract.Complete, 1)
		f.expect(2, contract.Complete, 4)
	})
}

// Behind a replay that has left nothing to ask for again, what is lost last is looked for as
// soon as behind any other.
func TestNothingIsLeftToRetry(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		f := follows(t, p, nil)
		defer f.stop()
		p.tell(t, false, stored(1))
		synctest.Wait()
		p.refuse(true)
		wait(f.cfg.Times.Probe + f.cfg.Times.Answer)
		farRetry(f)
		p.refuse(false)
		p.tell(t, true, stored(2))
		p.tell(t, false, stored(3))
		f.expect(2, contract.Complete, 2)
		p.tell(t, true, stored(4))
		wait(f.cfg.Times.Settle)
		f.expect(2, contract.Complete, 4)
	})
}

// A connection that was made again begins the times between retries anew, also where one was due.
func TestConnectionBeginsRetriesAnew(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		f := follows(t, p, nil)
		defer f.stop()
		lose(t, f, p)
		wait(farRetry(f) - time.Second)
		p.tell(t, true, stored(4))
		p.tell(t, false, stored(5))
		wait(2 * time.Second)
		p.disconnect()
		synctest.Wait()
		p.connect()
		wait(f.cfg.Times.Answer)
		asked := len(p.asked())
		wait(time.Second / 2)
		if n := len(p.asked()); n != asked {
			t.Errorf("%d questions more at once", n-asked)
		}
		wait(time.Second / 2)
		if n := len(p.asked()); n != asked+1 {
			t.Errorf("%d questions more, a second later", n-asked)
		}
	})
}
