package indexer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"

	"github.com/mooncake-sidecar/sidecar/bench/indexer/workload"
)

// publishers send as so many engines do, at a socket each. What they send is numbered
// from 0 on and can't be had again.
//
// They speak ZeroMQ's protocol themselves: its library would copy each message and have a
// thread of its own for sending it, and the less the sender takes of the processors, the
// more is left to what is measured. Nothing is lost: who sends waits while a subscriber
// does not read.
type publishers struct {
	engines   []*publisher
	endpoints []string
}

func newPublishers(engines int) (_ *publishers, err error) {
	p := &publishers{}
	for range engines {
		l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not wait
		if err != nil {
			return nil, errors.Join(fmt.Errorf("making a publisher: %w", err), p.close())
		}
		p.engines, p.endpoints = append(p.engines, newPublisher(l)), append(p.endpoints, "tcp://"+l.Addr().String())
	}
	return p, nil
}

// send sends batches in their order. Those of an engine that follow each other go at once.
func (p *publishers) send(batches []workload.Batch) error {
	for len(batches) > 0 {
		engine := batches[0].Engine
		n := slices.IndexFunc(batches, func(b workload.Batch) bool { return b.Engine != engine })
		if n < 0 {
			n = len(batches)
		}
		if err := p.engines[engine].send(batches[:n]); err != nil {
			return fmt.Errorf("sending as engine %d: %w", engine, err)
		}
		batches = batches[n:]
	}
	return nil
}

// subscribed returns when each has a subscriber.
func (p *publishers) subscribed(ctx context.Context) error {
	for engine, e := range p.engines {
		select {
		case <-e.heard:
		case <-ctx.Done():
			return fmt.Errorf("waiting until somebody subscribes to engine %d: %w", engine, context.Cause(ctx))
		}
	}
	return nil
}

func (p *publishers) close() error {
	var err error
	for _, e := range p.engines {
		err = errors.Join(err, e.close())
	}
	return err
}

// publisher is a PUB socket that has one subscriber at a time, which hears all topics.
type publisher struct {
	listener net.Listener
	serving  sync.WaitGroup
	heard    chan struct{} // closed when there is a subscriber

	sent  uint64
	heads []byte
	out   net.Buffers

	writing sync.Mutex // to a subscriber: whole messages

	mu     sync.Mutex // guards all below
	conns  []net.Conn
	peer   net.Conn // who subscribed last
	closed bool
}

func newPublisher(l net.Listener) *publisher {
	p := &publisher{listener: l, heard: make(chan struct{})}
	p.serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.serving.Go(func() { p.serve(conn) })
		}
	})
	return p
}

// serve answers a connection, and has messages go there once it has subscribed.
func (p *publisher) serve(conn net.Conn) {
	defer conn.Close()
	p.mu.Lock()
	p.conns = append(p.conns, conn)
	closed := p.closed
	p.mu.Unlock()
	if closed || greet(conn) != nil {
		return
	}
	for {
		flags, body, err := readFrame(conn)
		if err != nil {
			return
		}
		switch {
		case isSubscription(flags, body):
			p.mu.Lock()
			if p.peer == nil {
				close(p.heard)
			}
			p.peer = conn
			p.mu.Unlock()
		case isPing(flags, body):
			p.writing.Lock()
			_, err := conn.Write(pong(body))
			p.writing.Unlock()
			if err != nil {
				return
			}
		}
	}
}

// send sends batches with one call of the system. Who has no subscriber sends to nobody.
func (p *publisher) send(batches []workload.Batch) error {
	p.mu.Lock()
	conn := p.peer
	p.mu.Unlock()
	p.heads, p.out = p.heads[:0], p.out[:0]
	for _, b := range batches {
		from := len(p.heads)
		p.heads = appendHead(p.heads, p.sent, len(b.Payload))
		p.out = append(p.out, p.heads[from:], b.Payload)
		p.sent++
	}
	if conn == nil {
		return nil
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	out := p.out // which is used up
	if _, err := out.WriteTo(conn); err != nil {
		return fmt.Errorf("writing to the subscriber: %w", err)
	}
	return nil
}

func (p *publisher) close() error {
	err := p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for _, conn := range p.conns {
		_ = conn.Close() // it may have been closed
	}
	p.mu.Unlock()
	p.serving.Wait()
	if err != nil {
		return fmt.Errorf("ending a publisher: %w", err)
	}
	return nil
}

// freePort is one that nobody listens at now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not wait
	if err != nil {
		return 0, fmt.Errorf("finding a port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
