package feed

import (
	"sync"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// Limits of an inbox.
const (
	maxWaiting      = 1 << 16
	maxWaitingBytes = 64 << 20
)

// inbox is what a transport has brought and the feed has not taken.
type inbox struct {
	// waits: whoever brings something waits for room, else the oldest makes it.
	waits bool

	mu       sync.Mutex
	room     sync.Cond
	messages []kvevents.Message
	first    int // of those that wait
	bytes    int
	closed   bool
	dropped  uint64
	refused  uint64
	spare    []kvevents.Message // memory for the next ones
}

func newInbox(waits bool) *inbox {
	b := &inbox{waits: waits}
	b.room.L = &b.mu
	return b
}

func (b *inbox) fullLocked(more int) bool {
	n := len(b.messages) - b.first
	return n >= maxWaiting || n > 0 && b.bytes+more > maxWaitingBytes
}

// size is what a message takes.
func size(m *kvevents.Message) int { return len(m.Payload) + len(m.Topic) }

// put takes a message. It keeps a copy of its bytes.
func (b *inbox) put(m kvevents.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.waits && !b.closed && b.fullLocked(size(&m)) {
		b.room.Wait()
	}
	if b.closed {
		return
	}
	for b.fullLocked(size(&m)) {
		b.bytes -= size(&b.messages[b.first])
		b.messages[b.first] = kvevents.Message{}
		b.first++
		b.dropped++
	}
	if b.first > 0 && len(b.messages) == cap(b.messages) {
		b.messages = b.messages[:copy(b.messages, b.messages[b.first:])]
		b.first = 0
	}
	m.Payload = keep(m.Payload)
	b.messages = append(b.messages, m)
	b.bytes += size(&m)
}

// payloads are bytes of messages that nobody needs any more, of *[]byte: streams bring
// megabytes a second of them, which are read once.
var payloads sync.Pool

// mostKept bounds the bytes that are kept for another message; one that has less than a part
// of them is to have others.
const (
	mostKept = 64 << 10
	mostRoom = 4
)

// keep returns a copy of a message's bytes, for done.
func keep(payload []byte) []byte {
	var own []byte
	if kept, ok := payloads.Get().(*[]byte); ok {
		if own = *kept; cap(own) > mostRoom*len(payload) {
			payloads.Put(kept)
			own = nil
		}
	}
	return append(own[:0], payload...)
}

// done gives up the bytes of a message. Nobody may look at them any more.
func done(payload []byte) {
	if c := cap(payload); c > 0 && c <= mostKept {
		payloads.Put(&payload)
	}
}

// refuse counts what was no message.
func (b *inbox) refuse() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused++
}

// taken is what was in an inbox. The messages are the feed's until it takes again.
type taken struct {
	messages         []kvevents.Message
	dropped, refused uint64
}

// empty tells whether nothing waits.
func (b *inbox) empty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.messages) == b.first
}

// take empties the inbox.
func (b *inbox) take() taken {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := taken{b.messages[b.first:], b.dropped, b.refused}
	clear(b.spare) // the bytes of those before are not kept for it
	b.messages, b.spare = b.spare[:0], b.messages
	b.first, b.bytes, b.dropped, b.refused = 0, 0, 0, 0
	b.room.Broadcast()
	return t
}

// close has nobody wait for room any more.
func (b *inbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.room.Broadcast()
}

// link is whether there is a connection.
type link struct {
	mu    sync.Mutex
	up    bool
	times uint64 // it was made
}

func (l *link) set(up bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.up = up
	if up {
		l.times++
	}
}

// get returns whether there is a connection, and which one it is.
func (l *link) get() (up bool, times uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up, l.times
}
