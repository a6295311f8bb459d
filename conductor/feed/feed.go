package feed

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/follow"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// Config is what a feed works with.
type Config struct {
	Service contract.Service
	// Source is where the events go. It is the feed's until Run has returned.
	Source    *prefixindex.Source
	Transport Transport
	// Gate is shared while a message is applied: who has it alone sees all streams between
	// two messages.
	Gate *sync.RWMutex
	// Resume, when not nil, is what the source has already.
	Resume *Mark
	Log    *slog.Logger
	Times  Times
}

// Times are how long a feed waits. 0 is the default.
type Times struct {
	// Connect is for the connection before the first replay is asked for.
	Connect time.Duration
	// Answer is for a replay's next answer.
	Answer time.Duration
	// Probe is how long nothing may come before the publisher is asked whether it is there.
	Probe time.Duration
	// Settle is Probe behind a replay that brought what was missing: nobody says when a
	// subscription is in force, and what was told before it shows only with the next message.
	Settle time.Duration
	// Reconnect is how long a connection may be down before another one is tried.
	Reconnect time.Duration
}

func (t *Times) setDefaults() {
	for _, field := range []struct {
		value    *time.Duration
		standard time.Duration
	}{
		{&t.Connect, 2 * time.Second}, {&t.Answer, 5 * time.Second}, {&t.Probe, 30 * time.Second},
		{&t.Settle, 2 * time.Second}, {&t.Reconnect, 15 * time.Second},
	} {
		if *field.value <= 0 {
			*field.value = field.standard
		}
	}
}

// Mark is where a feed has got to: what Resume goes on from.
type Mark struct {
	follow.Mark
	Whole bool
	// Since is the number from which on all is known, where not all is.
	Since uint64
	// BlockTokens is the size of the blocks that were told of, 0 for none.
	BlockTokens int `json:",omitempty"`
}

// maxBlockTokens bounds what is believed of a mark: no decoder passes larger blocks on.
const maxBlockTokens = 1 << 24

// Feed follows one service. Run does all; Status, Summary and Mark may be called by anybody.
type Feed struct {
	cfg    Config
	stream *stream
	wake   chan struct{} // has a token when something has come

	sub    *subscription
	replay *replay
	// connected: one was made since the start; up: there is one now; connection is which
	// one it is.
	connected, up bool
	connection    uint64
	// unreachable is why nobody could be subscribed to, nil when somebody was.
	unreachable error
	// begun: the first replay was asked for. It changes while the gate is shared, see Mark.
	begun bool
	// asked is when the latest replay was asked for, and quiet that nothing has come since;
	// mute: nor within the time for an answer.
	asked       time.Time
	quiet, mute bool
	// answered: a replay was, to the end; unanswered: the latest one was not.
	answered, unanswered bool
	// heard is when something came last.
	heard time.Time
	// topic is the stream's: the service's, or that of the first message.
	topic      string
	hasTopic   bool
	otherTopic string
	// dropped and refused count messages that were not applied.
	dropped, refused uint64
	// counts are since the start.
	counts struct {
		replays, unanswered, live uint64
		delay                     time.Duration // of those that came live, together
	}
	limiter limiter
	// The times at which something is to be done, zero for never.
	timers struct {
		begin, answer, retry, probe, reconnect, ask time.Time
	}
	// wanted is the number from which a replay waits for its turn until timers.ask.
	wanted uint64

	status statusBox
}

// New makes a feed.
func New(cfg *Config) *Feed {
	f := &Feed{cfg: *cfg, wake: make(chan struct{}, 1)}
	f.cfg.Times.setDefaults()
	f.stream = newStream(&f.cfg.Service, cfg.Source)
	if m := cfg.Resume; m != nil && m.BlockTokens > 0 && m.BlockTokens <= maxBlockTokens {
		f.stream.blockTokens = m.BlockTokens
	}
	f.topic, f.hasTopic = cfg.Service.Topic, cfg.Service.Topic != ""
	f.report()
	return f
}

func (f *Feed) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Run follows the service until ctx ends. Where it can't be subscribed to, that is tried again
// and again.
func (f *Feed) Run(ctx context.Context) {
	f.sub = &subscription{inbox: newInbox(false)}
	now := time.Now()
	f.reconnect(now)
	f.timers.begin = now.Add(f.cfg.Times.Connect)
	defer func() {
		f.endReplay()
		f.leave(f.sub)
	}()
	f.limiter.start(now)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		case <-timer.C:
		}
		f.round()
		if next := f.next(); next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(time.Until(next))
		}
	}
}

// round takes what has come, and does what is due.
func (f *Feed) round() {
	defer f.report()
	f.takeLink()
	f.takeAnswers()
	f.takeMessages()
	f.due(time.Now())
}

// takeLink notes connections that were made or lost.
func (f *Feed) takeLink() {
	up, times := f.sub.link.get()
	now := time.Now()
	if f.up && !up || !f.up && up || times != f.connection {
		f.timers.reconnect = time.Time{}
		if !up {
			f.timers.reconnect = now.Add(f.cfg.Times.Reconnect)
		}
	}
	if times != f.connection { // one was made
		f.connection = times
		if f.cfg.Service.Topic == "" {
			f.hasTopic, f.otherTopic = false, ""
		}
		// What is heard with the first connection may be known before it is.
		if f.begun && (f.connected || f.cfg.Service.ReplayEndpoint != "" && (!f.replaying() || now.Sub(f.asked) >= f.cfg.Times.Connect)) {
			f.do(f.doubt())
		}
		f.connected = true
		if !f.begun {
			f.begin()
		}
	}
	f.up = up
}

// begin asks for the stream's beginning, or for what was applied last.
func (f *Feed) begin() {
	f.timers.begin = time.Time{}
	f.timers.probe = time.Now().Add(f.cfg.Times.Probe)
	if m := f.cfg.Resume; m != nil && f.cfg.Service.ReplayEndpoint != "" {
		f.do(f.gated(func() follow.Ask {
			f.begun = true
			return f.stream.resume(m)
		}))
		return
	}
	f.do(f.gated(func() follow.Ask {
		f.begun = true
		f.stream.any = f.cfg.Resume != nil // what nobody can be asked about is forgotten
		return f.stream.follower.Start()
	}))
}

// doubt is for a connection that was lost. What is asked for again is so from the beginning.
func (f *Feed) doubt() follow.Ask {
	f.timers.retry = time.Time{}
	if f.cfg.Service.ReplayEndpoint == "" {
		return f.gated(f.stream.follower.Start)
	}
	return f.gated(f.stream.follower.Doubt)
}

// gated has the stream change while nobody looks at all of them.
func (f *Feed) gated(change func() follow.Ask) follow.Ask {
	f.cfg.Gate.RLock()
	defer f.cfg.Gate.RUnlock()
	return change()
}

// takeAnswers hands a replay's answers on.
func (f *Feed) takeAnswers() {
	of := f.replay
	if of == nil {
		return
	}
	t := of.inbox.take()
	f.refused += t.refused
	for i := range t.messages {
		m := t.messages[i]
		t.messages[i] = kvevents.Message{}
		f.came()
		f.timers.answer = f.heard.Add(f.cfg.Times.Answer)
		if !m.End && !f.mine(m.Topic, true) {
			continue
		}
		catchingUp := f.stream.follower.State().CatchingUp
		next := f.gated(func() follow.Ask { return f.stream.follower.Replayed(m) })
		done(m.Payload)
		if m.End {
			f.answered, f.unanswered = true, false
			f.endReplay()
			if !next.Wanted && next.Later == 0 {
				f.timers.retry = time.Time{} // nothing is missing any more
			}
			if catchingUp {
				f.timers.probe = f.heard.Add(f.cfg.Times.Settle)
			}
		}
		f.do(next)
		if f.replay != of {
			return // what is left are answers to another question
		}
	}
}

// takeMessages hands what came live on.
func (f *Feed) takeMessages() {
	t := f.sub.inbox.take()
	f.dropped += t.dropped
	f.refused += t.refused
	was, connected := f.connection, f.connected
	f.takeLink() // it may have been made meanwhile
	if connected && (!f.up || f.connection != was) {
		return // nobody knows from which publisher it is; the replay at its doubt brings it again
	}
	for i := range t.messages {
		m := t.messages[i]
		t.messages[i] = kvevents.Message{}
		if !f.mine(m.Topic, false) {
			continue
		}
		f.came()
		f.timers.probe = f.heard.Add(f.cfg.Times.Probe)
		if !f.begun {
			f.begin()
		}
		next := f.stream.follower.State().Next
		f.stream.published = time.Time{}
		f.do(f.gated(func() follow.Ask { return f.stream.follower.Live(m) }))
		done(m.Payload)
		f.timed(next)
	}
}

// timed takes account of how old a message was that came live, if it was applied at once:
// next was wanted before.
func (f *Feed) timed(next uint64) {
	late := f.heard.Sub(f.stream.published)
	if f.stream.follower.State().Next != next+1 || f.stream.published.IsZero() || late > mostDelay {
		return
	}
	f.counts.live++
	f.counts.delay += max(late, 0)
}

// mostDelay is what two clocks are believed: no message waits for so long.
const mostDelay = time.Hour

// came notes that the publisher is there.
func (f *Feed) came() { f.heard, f.quiet, f.mute = time.Now(), false, false }

// mine tells whether a message is of the stream. Each topic has numbers of its own: where
// none is named it is the first one's that comes. Publishers of old leave it out of a replay.
func (f *Feed) mine(topic string, replayed bool) bool {
	switch {
	case replayed && topic == "":
		return true
	case !f.hasTopic:
		f.topic, f.hasTopic = topic, true
	case topic != f.topic:
		f.otherTopic = topic
	}
	return topic == f.topic
}
