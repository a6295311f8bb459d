package feed

import (
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/follow"
)

// A publisher is asked so often in a row, and then once in a while: one whose numbers go
// back and forth, as of two at one port, would do nothing else but answer.
const (
	mostAsks  = 8
	askPeriod = 2 * time.Second
)

// limiter has a token for each replay that may be asked for now.
type limiter struct {
	tokens int
	since  time.Time
}

func (l *limiter) start(now time.Time) { l.tokens, l.since = mostAsks, now }

// take takes a token, or says when there will be one.
func (l *limiter) take(now time.Time) (later time.Time) {
	more := int(now.Sub(l.since) / askPeriod)
	l.since = l.since.Add(time.Duration(more) * askPeriod)
	l.tokens = min(l.tokens+more, mostAsks)
	if l.tokens == 0 {
		return l.since.Add(askPeriod)
	}
	l.tokens--
	return time.Time{}
}

// do does what the follower asks for.
func (f *Feed) do(ask follow.Ask) {
	for {
		switch {
		case ask.Later > 0 && f.cfg.Service.ReplayEndpoint != "":
			// What is due already stays so: gaps that are filled again and again must not put
			// it off for ever.
			if at := time.Now().Add(ask.Later); f.timers.retry.IsZero() || at.Before(f.timers.retry) {
				f.timers.retry = at
			}
			return
		case !ask.Wanted:
			return
		case f.cfg.Service.ReplayEndpoint != "":
			f.request(ask.From)
			return
		}
		ask = f.gated(f.stream.follower.Unanswered) // there is nobody to ask
	}
}

// replaying tells whether a replay was asked for and not answered to its end.
func (f *Feed) replaying() bool { return f.replay != nil || !f.timers.ask.IsZero() }

// awaiting tells whether the follower waits for a replay, also for one that could not be asked
// for: what is to be asked for besides has to wait.
func (f *Feed) awaiting() bool { return f.replaying() || !f.timers.answer.IsZero() }

// request asks for a replay, in place of the one that is awaited, now or when it may.
func (f *Feed) request(from uint64) {
	f.endReplay()
	now := time.Now()
	if later := f.limiter.take(now); !later.IsZero() {
		f.timers.ask, f.wanted = later, from
		return
	}
	topic := ""
	if f.store() {
		topic = f.cfg.Service.Topic
	}
	r, err := ask(f.cfg.Transport, f.cfg.Service.ReplayEndpoint, from, topic, f.signal)
	f.counts.replays++
	f.asked, f.quiet, f.timers.answer = now, true, now.Add(f.cfg.Times.Answer)
	if err != nil {
		f.cfg.Log.Warn("KV events: a replay can't be asked for", "service", f.cfg.Service.Key().String(), "endpoint", f.cfg.Service.ReplayEndpoint, "error", err)
		return // as if nobody had answered
	}
	f.replay = r
}

// endReplay gives up the replay that is awaited, if any.
func (f *Feed) endReplay() {
	f.timers.answer, f.timers.ask = time.Time{}, time.Time{}
	if f.replay == nil {
		return
	}
	if err := f.replay.close(); err != nil {
		f.cfg.Log.Warn("KV events: end of a replay", "service", f.cfg.Service.Key().String(), "error", err)
	}
	f.replay = nil
}

// due does what is due.
func (f *Feed) due(now time.Time) {
	is := func(at *time.Time) bool {
		if at.IsZero() || now.Before(*at) {
			return false
		}
		*at = time.Time{}
		return true
	}
	if is(&f.timers.begin) {
		f.begin()
	}
	switch {
	case !is(&f.timers.answer):
	case f.replay != nil && !f.replay.inbox.empty(): // it was answered, and this feed was held up
		f.timers.answer = now.Add(f.cfg.Times.Answer)
		f.signal()
	default:
		f.endReplay()
		f.counts.unanswered++
		f.mute, f.unanswered = f.quiet, true
		f.do(f.gated(f.stream.follower.Unanswered))
	}
	if !f.awaiting() && is(&f.timers.retry) {
		f.do(f.gated(f.stream.follower.Retry))
	}
	if is(&f.timers.ask) {
		f.request(f.wanted)
	}
	if is(&f.timers.probe) {
		f.timers.probe = now.Add(f.cfg.Times.Probe)
		if f.up && f.cfg.Service.ReplayEndpoint != "" && f.timers.retry.IsZero() && !f.replaying() {
			f.do(f.gated(f.stream.follower.Probe))
		}
	}
	if is(&f.timers.reconnect) {
		f.reconnect(now)
	}
}

// reconnect gives the connection up for another one: one that stays down may be at fault
// itself.
func (f *Feed) reconnect(now time.Time) {
	f.timers.reconnect = now.Add(f.cfg.Times.Reconnect)
	s, err := subscribe(f.cfg.Transport, f.cfg.Service.Endpoint, f.cfg.Service.Topic, f.signal)
	f.unreachable = err
	if err != nil {
		f.cfg.Log.Warn("KV events: no subscription", "service", f.cfg.Service.Key().String(), "endpoint", f.cfg.Service.Endpoint, "error", err)
		return
	}
	old := f.sub
	f.sub, f.up, f.connection = s, false, 0
	f.leave(old)
}

// leave ends a connection.
func (f *Feed) leave(s *subscription) {
	if err := s.close(); err != nil {
		f.cfg.Log.Warn("KV events: end of a connection", "service", f.cfg.Service.Key().String(), "error", err)
	}
}

// next returns when something is due, zero for never.
func (f *Feed) next() (first time.Time) {
	retry := f.timers.retry
	if f.awaiting() {
		retry = time.Time{} // the end of what is awaited wakes the feed
	}
	for _, at := range []time.Time{f.timers.begin, f.timers.answer, retry, f.timers.probe, f.timers.reconnect, f.timers.ask} {
		if !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}
