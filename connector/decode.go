package connector

import (
	"errors"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
)

// message is what every message type has: a check of its fields' ranges.
type message interface{ check() error }

// Decode parses a frame without its length. The result is a pointer to one of
// the message types and owns its bytes. Every error is a *MalformedError.
//
// What is checked: the limits of a frame, the types of the fields, and the
// ranges that hold whatever was registered. What depends on a registration
// (block ids, token counts) is the receiver's to check.
func Decode(frame []byte) (any, error) {
	if err := scan(frame); err != nil {
		return nil, &MalformedError{Err: err}
	}
	var env Envelope
	if err := msgpack.Unmarshal(frame, &env); err != nil {
		return nil, &MalformedError{Err: err}
	}
	msg := newMessage(env.Type)
	if msg == nil {
		return nil, &MalformedError{Err: fmt.Errorf("unknown type %.32q", env.Type)}
	}
	err := msgpack.Unmarshal(frame, msg)
	if err == nil {
		err = msg.check()
	}
	if err != nil {
		return nil, &MalformedError{Type: env.Type, Job: jobOf(env.Type, frame), Err: err}
	}
	return msg, nil
}

func newMessage(name string) message {
	switch name {
	case TypeHello:
		return new(Hello)
	case TypeWelcome:
		return new(Welcome)
	case TypeError:
		return new(Error)
	case TypeRegister:
		return new(Register)
	case TypeRegistered:
		return new(Registered)
	case TypeStore:
		return new(StoreBatch)
	case TypeLoad:
		return new(LoadJob)
	case TypeCancel:
		return new(Cancel)
	case TypeFinished:
		return new(Finished)
	case TypeResult:
		return new(Result)
	case TypePing:
		return new(Ping)
	case TypePong:
		return new(Pong)
	case TypeEngine:
		return new(Engine)
	case TypeGeneration:
		return new(Generation)
	case TypeLookupChannel:
		return new(LookupChannel)
	case TypeSegments:
		return new(Segments)
	case TypeDeclare:
		return new(Declare)
	case TypeAfter:
		return new(After)
	case TypeAhead:
		return new(Ahead)
	case TypeFinal:
		return new(Final)
	case TypeFollow:
		return new(Follow)
	case TypeOffer:
		return new(Offer)
	case TypeDecline:
		return new(Decline)
	}
	return nil
}

// jobOf reads the job of a store or load frame that is wrong elsewhere.
func jobOf(name string, frame []byte) uint64 {
	if name != TypeStore && name != TypeLoad {
		return 0
	}
	var named struct {
		Job uint64 `msgpack:"job"`
	}
	if msgpack.Unmarshal(frame, &named) != nil || checkJob(named.Job) != nil {
		return 0
	}
	return named.Job
}

// CancelBit marks a job's word on the job board as cancelled.
const CancelBit = 1 << 63

var errJob = errors.New("a job id is 1 to 2^63-1")

func checkJob(job uint64) error {
	if job == 0 || job >= CancelBit {
		return errJob
	}
	return nil
}
