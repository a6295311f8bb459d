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
// What is neither message nor header (frames, windows, pings, TLS) is made up for by a little
// more than it is for each message, and by beginning anew whenever no call is under way. Of a
// call that breaks off the bytes that came stay counted until then.
type arrivals struct {
	most int64
	log  *slog.Logger

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
	besideBytes = 256
)

// arriving is a connection.
type arriving struct {
	net.Conn
	of *arrivals
	at ends
	// bytes that were not read by a call, and calls under way. Guarded by arrivals.mu.
	bytes int64
	calls int
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
	c := &arriving{Conn: conn, of: l.of, at: ends{conn.LocalAddr().String(), conn.RemoteAddr().String()}}
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

// came counts what was read from a connection, and returns the one that is to be ended, if one
// is. It has nothing any more.
func (a *arrivals) came(c *arriving, n int64) (hog *arriving) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.calls == 0 { // nothing of before is kept for anybody
		a.addLocked(c, -c.bytes)
	}
	if a.conns[c.at] != c { // it was closed
		return nil
	}
	if a.addLocked(c, n); a.all <= a.most {
		return nil
	}
	hog = c
	for _, other := range a.conns {
		if other.bytes > hog.bytes {
			hog = other
		}
	}
	a.addLocked(hog, -hog.bytes)
	delete(a.conns, hog.at)
	return hog
}

type arrivingKey struct{}

// TagConn implements stats.Handler.
func (a *arrivals) TagConn(ctx context.Context, of *stats.ConnTagInfo) context.Context {
	a.mu.Lock()
	defer a.mu.Unlock()
	return context.WithValue(ctx, arrivingKey{}, a.conns[ends{of.LocalAddr.String(), of.RemoteAddr.String()}])
}

// HandleConn implements stats.Handler.
func (*arrivals) HandleConn(context.Context, stats.ConnStats) {}

// TagRPC implements stats.Handler.
func (*arrivals) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// HandleRPC implements stats.Handler.
func (a *arrivals) HandleRPC(ctx context.Context, event stats.RPCStats) {
	c, _ := ctx.Value(arrivingKey{}).(*arriving)
	if c == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch e := event.(type) {
	case *stats.Begin:
		c.calls++
	case *stats.End:
		c.calls--
	case *stats.InHeader:
		a.addLocked(c, -int64(e.WireLength))
	case *stats.InPayload:
		a.addLocked(c, -int64(e.WireLength+e.WireLength/besideShare+besideBytes))
	}
}
