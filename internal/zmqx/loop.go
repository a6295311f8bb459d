package zmqx

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/pebbe/zmq4"
)

// drainBatch is how many requests are answered between two looks at the control
// socket.
const drainBatch = 64

// envelopeFrames are the frames before a request: the peer's routing id and the
// empty delimiter.
const envelopeFrames = 2

// run owns the sockets until it is told to stop.
func (r *Responder) run() {
	defer close(r.done)
	defer r.loop.Leave()
	defer func() { r.err = errors.Join(r.err, r.closeSockets()) }()
	for {
		r.loop.Beat()
		ready, err := r.poller.Poll(r.interval)
		if err != nil {
			if isErrno(err, syscall.EINTR) {
				continue
			}
			r.err = fmt.Errorf("zmqx: poll: %w", err)
			return
		}
		for _, item := range ready {
			if item.Socket == r.control {
				return
			}
		}
		if err := r.drain(); err != nil {
			r.err = err
			return
		}
	}
}

// drain answers what has arrived, up to r.batch requests.
func (r *Responder) drain() error {
	for range r.batch {
		frames, ok, err := r.receive()
		if isErrno(err, syscall.EAGAIN) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("zmqx: receive: %w", err)
		}
		if !ok {
			r.stats.malformed.Add(1)
			continue
		}
		r.stats.requests.Add(1)
		r.serve(frames[envelopeFrames:], func(reply [][]byte) bool { return r.answer(frames[0], reply) })
	}
	return nil
}

// receive reads one message. ok is false when it is not routing id, empty frame
// and one to MaxFrames frames.
func (r *Responder) receive() (frames [][]byte, ok bool, err error) {
	flags := zmq4.DONTWAIT
	ok = true
	for {
		frame, err := r.router.RecvBytes(flags)
		if isErrno(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		flags = 0 // a message arrives whole
		if len(frames) < envelopeFrames+MaxFrames {
			frames = append(frames, frame)
		} else {
			ok = false
		}
		more, err := r.router.GetRcvmore()
		if err != nil {
			return nil, false, err
		}
		if !more {
			ok = ok && len(frames) > envelopeFrames && len(frames[1]) == 0
			return frames, ok, nil
		}
	}
}

// answer sends a reply; a client that is gone or does not read loses it. True: it
// is on its way.
func (r *Responder) answer(id []byte, reply [][]byte) bool {
	flags := zmq4.SNDMORE | zmq4.DONTWAIT
	_, err := r.router.SendBytes(id, flags)
	if err == nil {
		_, err = r.router.SendBytes(nil, flags)
	}
	for i, frame := range reply {
		if err != nil {
			break
		}
		if i == len(reply)-1 {
			flags = zmq4.DONTWAIT
		}
		_, err = r.router.SendBytes(frame, flags)
	}
	if err != nil {
		r.stats.dropped.Add(1)
	}
	return err == nil
}

func isErrno(err error, errno syscall.Errno) bool {
	return err != nil && zmq4.AsErrno(err) == zmq4.Errno(errno)
}
