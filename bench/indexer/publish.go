package indexer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/mooncake-sidecar/sidecar/internal/zmqx"
)

// publishers send as so many engines do: one socket each. What they send is numbered
// from 0 on and can't be had again.
type publishers struct {
	transport *zmqx.Transport
	sockets   []*zmqx.Publisher
	endpoints []string
	sent      []uint64 // by engine
}

// publishQueue is vLLM's own bound for what waits for one subscriber.
const publishQueue = 100_000

func newPublishers(engines int) (_ *publishers, err error) {
	p := &publishers{sent: make([]uint64, engines)}
	if p.transport, err = zmqx.New(); err != nil {
		return nil, fmt.Errorf("making publishers: %w", err)
	}
	for range engines {
		port, err := freePort()
		if err != nil {
			return nil, errors.Join(err, p.close())
		}
		endpoint := "tcp://127.0.0.1:" + strconv.Itoa(port)
		socket, err := p.transport.Publish(endpoint, publishQueue)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("making a publisher: %w", err), p.close())
		}
		p.sockets, p.endpoints = append(p.sockets, socket), append(p.endpoints, endpoint)
	}
	return p, nil
}

func (p *publishers) send(engine int, payload []byte) error {
	err := p.sockets[engine].Send(nil, binary.BigEndian.AppendUint64(nil, p.sent[engine]), payload)
	p.sent[engine]++
	if err != nil {
		return fmt.Errorf("sending as engine %d: %w", engine, err)
	}
	return nil
}

func (p *publishers) close() error {
	var err error
	for _, s := range p.sockets {
		err = errors.Join(err, s.Close())
	}
	return errors.Join(err, p.transport.Close())
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
