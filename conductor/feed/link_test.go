package feed

import (
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// One question that nobody answers costs nothing of what the publisher has no more.
func TestAnUnansweredProbeCostsNothing(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		f := follows(t, p, nil)
		defer f.stop()
		for i := range uint32(5) {
			p.tell(t, false, stored(1+i))
		}
		p.evict(2)
		f.expect(2, contract.Complete, 1)
		p.refuse(true)
		wait(36 * time.Second)
		p.refuse(false)
		wait(20 * time.Second)
		f.expect(2, contract.Complete, 1)
	})
}

// What comes before word of the connection may be another publisher's.
func TestMessagesBeforeTheConnection(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		f := follows(t, p, nil)
		defer f.stop()
		p.tell(t, false, stored(1))
		p.tell(t, false, stored(2))
		synctest.Wait()
		p.disconnect()
		synctest.Wait()
		p.restart()
		p.tell(t, true, stored(11))
		p.tell(t, true, stored(12))
		p.tell(t, false, stored(13))
		synctest.Wait()
		p.connect()
		wait(2 * time.Minute)
		f.expect(0, contract.Complete, 1)
		f.expect(2, contract.Complete, 13)
	})
	test(t, func(t *testing.T) { // the first one, and nobody can be asked
		p := newPublisher()
		p.absent = true
		f := follows(t, p, func(c *Config) { c.Service.ReplayEndpoint = "" })
		defer f.stop()
		p.tell(t, false, stored(1))
		synctest.Wait()
		p.connect()
		f.expect(2, contract.Complete, 1)
	})
}

// What was told between the replay and the subscription is asked for soon, not after Probe.
func TestSettle(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		p.tell(t, true, stored(1))
		f := follows(t, p, nil)
		defer f.stop()
		p.tell(t, true, stored(2))
		wait(3 * time.Second)
		f.expect(2, contract.Complete, 2)
		wait(20 * time.Second)
		if asked := p.asked(); !slices.Equal(asked, []uint64{0, 0}) {
			t.Errorf("asked %v", asked)
		}
	})
}

// full is a publisher that can't be subscribed to as long as it is.
type full struct {
	*publisher
	is atomic.Bool
}

func (f *full) Subscribe(endpoint, topic string, hear func([][]byte), link func(bool)) (io.Closer, error) {
	if f.is.Load() {
		return nil, errors.New("too many open files")
	}
	return f.publisher.Subscribe(endpoint, topic, hear, link)
}

// What can't be subscribed to is tried again; what is not confirmed meanwhile is forgotten.
func TestNoSubscription(t *testing.T) {
	test(t, func(t *testing.T) {
		p := &full{publisher: newPublisher()}
		p.is.Store(true)
		p.refuse(true)
		index := prefixindex.New(prefixindex.Options{})
		source := index.Open(prefixindex.Origin{Model: "m", Instance: "e"})
		source.Apply(&kvevents.Batch{Events: []kvevents.Event{stored(1)}})
		mark := &Mark{Whole: true, BlockTokens: blockTokens}
		mark.Next = 1
		f := follows(t, p.publisher, func(c *Config) { c.Transport, c.Source, c.Resume = p, source, mark })
		f.index = index
		defer f.stop()
		f.expect(2, contract.Connecting, 1)
		if got := f.Summary().BlockTokens; got != blockTokens {
			t.Errorf("blocks of %d tokens", got)
		}
		wait(10 * time.Second)
		f.expect(0, contract.Connecting, 1)
		if s := f.Status(); !strings.Contains(s.Reason, "too many open files") {
			t.Errorf("%+v", s)
		}
		p.is.Store(false)
		p.refuse(false)
		p.tell(t, true, stored(2))
		wait(time.Minute)
		f.expect(2, contract.Complete, 2)
		f.gate.Lock()
		defer f.gate.Unlock()
		if m, ok := f.Mark(); !ok || m.BlockTokens != blockTokens {
			t.Errorf("%+v", m)
		}
	})
}

// Answers that wait here are not missing.
func TestAnswersThatWait(t *testing.T) {
	f := New(&Config{Service: serviceOf(), Source: prefixindex.New(prefixindex.Options{}).Open(prefixindex.Origin{}), Log: nil})
	f.sub, f.replay = &subscription{inbox: newInbox(false)}, &replay{inbox: newInbox(true)}
	f.replay.inbox.put(kvevents.Message{End: true})
	now := time.Now()
	f.timers.answer = now.Add(-time.Second)
	f.due(now)
	if f.replay == nil || !f.timers.answer.After(now) || len(f.wake) != 1 {
		t.Error("they were given up")
	}
}
