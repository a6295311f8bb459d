package feed

import (
	"io"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// Transport connects to publishers. internal/zmqx has one.
type Transport interface {
	// Subscribe follows a topic of a publisher, which need not be there yet, "" for all.
	// hear is called with each message, whose frames are its own until it returns; it does
	// not block. link is called with true when a connection is made and with false when it
	// is lost; it may be called while hear is. Neither is called once Close has returned.
	Subscribe(endpoint, topic string, hear func(frames [][]byte), link func(up bool)) (io.Closer, error)
	// Ask sends a request, and hear is called with each answer, as above, until Close has
	// returned. While it blocks answers wait.
	Ask(endpoint string, request [][]byte, hear func(frames [][]byte)) (io.Closer, error)
}

// subscription is a connection to a publisher and what it has brought.
type subscription struct {
	inbox  *inbox
	link   link
	closer io.Closer
}

// subscribe connects. wake is told of all that comes.
func subscribe(t Transport, endpoint, topic string, wake func()) (*subscription, error) {
	s := &subscription{inbox: newInbox(false)}
	var err error
	s.closer, err = t.Subscribe(endpoint, topic, func(frames [][]byte) {
		if m, err := kvevents.ParseLive(frames); err != nil {
			s.inbox.refuse()
		} else {
			s.inbox.put(m)
		}
		wake()
	}, func(up bool) {
		s.link.set(up)
		wake()
	})
	return s, err
}

func (s *subscription) close() error {
	if s == nil || s.closer == nil {
		return nil
	}
	s.inbox.close()
	return s.closer.Close()
}

// replay is a question and what has been answered.
type replay struct {
	inbox  *inbox
	closer io.Closer
}

// ask asks for all from a number on. Mooncake's publishers and ours take a topic; vLLM's
// leaves a request with one unanswered.
func ask(t Transport, endpoint string, from uint64, topic string, wake func()) (*replay, error) {
	r := &replay{inbox: newInbox(true)}
	request := kvevents.ReplayRequest(from)
	if topic != "" {
		request = append(request, []byte(topic))
	}
	var err error
	r.closer, err = t.Ask(endpoint, request, func(frames [][]byte) {
		if m, err := kvevents.ParseReplay(frames); err != nil {
			r.inbox.refuse()
		} else {
			r.inbox.put(m)
		}
		wake()
	})
	return r, err
}

func (r *replay) close() error {
	if r == nil || r.closer == nil {
		return nil
	}
	r.inbox.close()
	return r.closer.Close()
}
