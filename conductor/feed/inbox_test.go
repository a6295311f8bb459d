package feed

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// The oldest make room, by their number and by their bytes; one that alone is too large is
// taken.
func TestInboxDropsTheOldest(t *testing.T) {
	b := newInbox(false)
	large := make([]byte, maxWaitingBytes/4)
	for seq := range uint64(10) {
		b.put(kvevents.Message{Seq: seq, Topic: string(large[1:]), Payload: large[:1]})
	}
	got := b.take()
	if len(got.messages) != 4 || got.messages[0].Seq != 6 || got.dropped != 6 || b.bytes != 0 {
		t.Errorf("%d messages, %d dropped", len(got.messages), got.dropped)
	}
	b.put(kvevents.Message{Seq: 1, Payload: make([]byte, 2*maxWaitingBytes)})
	if got := b.take(); len(got.messages) != 1 || got.dropped != 0 {
		t.Errorf("%d messages, %d dropped", len(got.messages), got.dropped)
	}
	for seq := range uint64(3 * maxWaiting) {
		b.put(kvevents.Message{Seq: seq})
	}
	if got := b.take(); len(got.messages) != maxWaiting || got.messages[0].Seq != 2*maxWaiting || got.dropped != 2*maxWaiting {
		t.Errorf("%d messages, %d dropped", len(got.messages), got.dropped)
	}
	b.close()
	b.put(kvevents.Message{})
	if got := b.take(); len(got.messages) != 0 {
		t.Error("a closed inbox takes messages")
	}
}

// What a message says is the inbox's own: who brought it may use its bytes again. Bytes that
// were given up are used for others, never while somebody looks at them.
func TestInboxKeepsItsOwn(t *testing.T) {
	b := newInbox(false)
	brought := make([]byte, 100)
	put := func(from, to byte) {
		for i := from; i < to; i++ {
			for j := range brought {
				brought[j] = i
			}
			b.put(kvevents.Message{Seq: uint64(i), Payload: brought[:1+i]})
		}
	}
	put(0, 50)
	for round := range byte(20) {
		messages := b.take().messages
		put(50*(1-round%2), 50+50*(1-round%2)) // while those are looked at
		for i, m := range messages {
			want := byte(i) + 50*(round%2)
			if len(m.Payload) != 1+int(want) || m.Payload[0] != want || m.Payload[want] != want {
				t.Fatalf("round %d, message %d: %v", round, i, m.Payload)
			}
			done(m.Payload)
		}
	}
}

// Answers wait for room, until there is some or nobody wants them any more.
func TestInboxWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newInbox(true)
		var put atomic.Int64
		done := make(chan struct{})
		go func() {
			defer close(done)
			for seq := range uint64(2*maxWaiting + 1) {
				b.put(kvevents.Message{Seq: seq})
				put.Add(1)
			}
		}()
		for _, want := range []int64{maxWaiting, 2 * maxWaiting} {
			synctest.Wait()
			were := put.Load()
			if got := b.take(); were != want || len(got.messages) != maxWaiting || got.dropped != 0 {
				t.Fatalf("%d put, %d taken", were, len(got.messages))
			}
		}
		<-done
		b.take()
		for range maxWaiting {
			b.put(kvevents.Message{})
		}
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			b.put(kvevents.Message{})
		}()
		synctest.Wait()
		b.close()
		<-gone
	})
}
