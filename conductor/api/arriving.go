package api

import (
	"context"
	"log/slog"
	"net"
	"sync"

	"google.golang.org/grpc/stats"
)

// arrivals bounds what has been sent over gRPC's connections and not been read by calls.
// A connection's own windows do not: each of its calls may send a whole message, as many calls
// as it likes. gRPC reads a message whole before anybody is asked about it, so that bytes are
// counted where they come in, and counted off when a message has been read. Beyond the bound
// the connection that has most is ended: it is the one that sends without end, or many large
// messages at once, and those who share the machine with it go on.
//
// What is neither message nor header (frames, windows, pings, TLS) is made up for by about what
// it is for each message, and by beginning anew whenever no call is under way. It is no bound
// against malice: who sends many messages that have less beside them hides so much of others.
//
// What no call reads (of calls that are refused, unknown or broken off, and messages that are too
// large or cannot be decoded) is gone from memory and still counted. So before a connection is
// ended it is counted anew: as no more than its open calls can have. That is exact enough for
// one whose calls are read, or that has few; one with many open calls that send nothing can
// still be ended for what others of its calls have sent in vain.
type arrivals struct {
	most int64
	// message is the most that a message has.
	message int64
	log     *slog.Logger

	mu  sync.Mutex // guards all below, and what arriving says
	all int64
	// conns are those that are open, by what gRPC knows of them.
	conns map[ends]*arriving
}

// ends are the addresses of a connection.
type ends struct{ local, remote string }

// What a message has beside it, about: a part of its size, and so many bytes.
const (
	besideShare = 64
	besideBytes = 96
)

// WindowBytes is what a call may send before it is read: the windows that a server of this
// service is to have, of its calls and of its connections.
const WindowBytes = 4 << 20

// arriving is a connection.
type arriving struct {
	net.Conn
	of *arrivals
	at ends
	// bytes that were not read by a call, all that ever came, and calls under way. Guarded by
	// arrivals.mu.
	bytes, total int64
	calls        map[*sending]struct{}
}

// sending is a call of a connection.
type sending struct {
	by *arriving
	// read is what had come over the connection when the call's latest message was read, or when
	// it began. Guarded by arrivals.mu.
	read int64
}

// arrivalListener has its connections counted.
type arrivalListener struct {
	net.Listener
	of *arrivals
}

// Accept implements net.Listener.
func (l *arrivalListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &arriving{Conn: conn, of: l.of, at: ends{conn.LocalAddr().String(), conn.RemoteAddr().String()}, calls: map[*sending]struct{}{}}
	l.of.mu.Lock()
	defer l.of.mu.Unlock()
	if l.of.conns == nil {
		l.of.conns = map[ends]*arriving{}
	}
	l.of.conns[c.at] = c
	return c, nil
}

// Read implements net.Conn.
func (c *arriving) Read(p []byte) (n int, err error) {
	n, err = c.Conn.Read(p)
	if hog := c.of.came(c, int64(n)); hog != nil {
		c.of.log.Warn("gRPC: a connection is ended: more than may be is being sent", "remote", hog.at.remote)
		_ = hog.Conn.Close() // who reads from it closes it, too
	}
	return n, err
}

// Close implements net.Conn.
func (c *arriving) Close() error {
	c.of.mu.Lock()
	c.of.addLocked(c, -c.bytes)
	if c.of.conns[c.at] == c {
		delete(c.of.conns, c.at)
	}
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// addLocked counts bytes on or off.
func (a *arrivals) addLocked(c *arriving, n int64) {
	n = max(n, -c.bytes)
	c.bytes += n
	a.all += n
}

// anewLocked counts a connection as no more than its calls can have, and returns whether that is
// less. A call has a window of what came before its latest message was read, and of what came
// since no more than a message, for which its window is opened.
func (a *arrivals) anewLocked(c *arriving) (less bool) {
	can := int64(0)
	for call := range c.calls {
		can += WindowBytes + min(c.total-call.read, a.message)
	}
	if less = can < c.bytes; less {
		a.addLocked(c, can-c.bytes)
	}
	return less
}

// came counts what was read from a connection, and returns the one that is to be ended, if one
// is. It has nothing any more.
func (a *arrivals) came(c *arriving, n int64) (hog *arriving) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(c.calls) == 0 { // nothing of before is kept for anybody
		a.addLocked(c, -c.bytes)
	}
	if a.conns[c.at] != c { // it was closed
		return nil
	}
	c.total += n
	a.addLocked(c, n)
	for {
		if a.all <= a.most {
			return nil
		}
		hog = c
		for _, other := range a.conns {
			if other.bytes > hog.bytes {
				hog = other
			}
		}
		if !a.anewLocked(hog) { // at the second time it is not less
			break
		}
	}
	a.addLocked(hog, -hog.bytes)
	delete(a.conns, hog.at)
	return hog
}

type (
	arrivingKey struct{}
	sendingKey  struct{}
)

// TagConn implements stats.Handler.
func (a *arrivals) TagConn(ctx context.Context, of *stats.ConnTagInfo) context.Context {
	a.mu.Lock()
	defer a.mu.Unlock()
	return context.WithValue(ctx, arrivingKey{}, a.conns[ends{of.LocalAddr.String(), of.RemoteAddr.String()}])
}

// HandleConn implements stats.Handler.
func (*arrivals) HandleConn(context.Context, stats.ConnStats) {}

// TagRPC implements stats.Handler.
func (*arrivals) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	c, _ := ctx.Value(arrivingKey{}).(*arriving)
	if c == nil {
		return ctx
	}
	return context.WithValue(ctx, sendingKey{}, &sending{by: c})
}

// HandleRPC implements stats.Handler.
func (a *arrivals) HandleRPC(ctx context.Context, event stats.RPCStats) {
	call, _ := ctx.Value(sendingKey{}).(*sending)
	if call == nil {
		return
	}
	c := call.by
	a.mu.Lock()
	defer a.mu.Unlock()
	switch e := event.(type) {
	case *stats.Begin:
		call.read = c.total
		c.calls[call] = struct{}{}
	case *stats.End:
		delete(c.calls, call)
	case *stats.InHeader:
		a.addLocked(c, -int64(e.WireLength))
	case *stats.InPayload:
		call.read = c.total
		a.addLocked(c, -int64(e.WireLength+e.WireLength/besideShare+besideBytes))
	}
}
