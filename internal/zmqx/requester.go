package zmqx

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/pebbe/zmq4"
)

// requester is one question to a ROUTER, with any number of answers.
type requester struct {
	socket    *zmq4.Socket
	answers   *waiter
	malformed atomic.Uint64
	running   sync.WaitGroup
	closing   sync.Once
	err       error
}

// answerQueue bounds the answers that libzmq holds: a publisher that replays does not wait
// for whoever reads slowly, but leaves out what is more than this and its own queue.
const answerQueue = 1 << 14

// Ask sends a request to a replay endpoint, ipc or tcp, and has each answer heard until it
// is closed: who asks knows which is the last one, and how long to wait. hear is called by
// one goroutine, with frames that are its own; while it blocks answers wait. It is not
// called when Close has returned, and Close must not be called from it.
func (t *Transport) Ask(endpoint string, request [][]byte, hear func(frames [][]byte)) (io.Closer, error) {
	r := &requester{}
	if err := r.open(t, endpoint, request); err != nil {
		return nil, errors.Join(err, r.release())
	}
	r.running.Go(func() {
		for {
			if err := r.answers.wait(); err != nil {
				return
			}
			if err := r.answers.drain(hear, &r.malformed); err != nil {
				return
			}
		}
	})
	return r, nil
}

func (r *requester) open(t *Transport, endpoint string, request [][]byte) (err error) {
	if r.socket, err = t.newSocket(zmq4.DEALER); err != nil {
		return err
	}
	if err := errors.Join(reconnecting(r.socket), r.socket.SetRcvhwm(answerQueue)); err != nil {
		return fmt.Errorf("zmqx: socket options: %w", err)
	}
	if r.answers, err = newWaiter(r.socket); err != nil {
		return err
	}
	if err := connect(r.socket, endpoint); err != nil {
		return err
	}
	parts := make([]any, len(request))
	for i := range request {
		parts[i] = request[i]
	}
	if _, err := r.socket.SendMessageDontwait(parts...); err != nil {
		return fmt.Errorf("zmqx: ask %s: %w", endpoint, err)
	}
	return nil
}

// Close gives up what has not been heard, and waits for hear to return.
func (r *requester) Close() error {
	r.closing.Do(func() {
		r.answers.stop()
		r.running.Wait()
		r.err = r.release()
	})
	return r.err
}

func (r *requester) release() error {
	var errs []error
	if r.answers != nil {
		errs = append(errs, r.answers.close())
	}
	if r.socket != nil {
		errs = append(errs, r.socket.Close())
	}
	return errors.Join(errs...)
}
