package admin

import (
	"net"
	"sync"
)

// limited is a listener with at most so many open connections. Beyond them it
// accepts none, and the peer waits in the kernel's queue.
type limited struct {
	net.Listener
	room chan struct{}
	done chan struct{}
	once sync.Once
}

// Limit returns a listener that has at most so many open connections of l.
func Limit(l net.Listener, most int) net.Listener { return newLimited(l, most) }

func newLimited(l net.Listener, most int) *limited {
	return &limited{Listener: l, room: make(chan struct{}, most), done: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.room <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.room
		return nil, err
	}
	return &limitedConn{Conn: conn, free: sync.OnceFunc(func() { <-l.room })}, nil
}

// Close implements net.Listener.
func (l *limited) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// limitedConn makes room when it is closed.
type limitedConn struct {
	net.Conn
	free func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.free()
	return c.Conn.Close()
}
