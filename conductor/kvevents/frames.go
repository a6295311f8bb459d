package kvevents

import "encoding/binary"

// Message is what a publisher sends: a batch with its number.
type Message struct {
	Topic string
	// Seq counts the publisher's batches from 0, vLLM's, or from the microseconds of
	// its clock, lookupd's. A number that is lower than one before is a publisher that
	// was started anew.
	Seq     uint64
	Payload []byte
	// End: no batch, but the end of a replay.
	End bool
}

// seqBytes is the length of a number in its frame, and of one that asks for a replay.
const seqBytes = 8

// endSeq in place of a number ends a replay.
const endSeq = 1<<64 - 1

// ParseLive reads a message as a subscriber gets it: topic, number, batch.
func ParseLive(frames [][]byte) (Message, error) {
	if len(frames) != 3 || len(frames[1]) != seqBytes {
		return Message{}, malformed("a message of %d frames", len(frames))
	}
	return Message{Topic: string(frames[0]), Seq: binary.BigEndian.Uint64(frames[1]), Payload: frames[2]}, nil
}

// ParseReplay reads an answer of a replay endpoint as a DEALER gets it: an empty
// frame, the topic, the number, the batch. Publishers before vLLM 0.24, and SGLang,
// leave the topic out.
func ParseReplay(frames [][]byte) (Message, error) {
	n := len(frames)
	if n < 3 || n > 4 || len(frames[0]) != 0 || len(frames[n-2]) != seqBytes {
		return Message{}, malformed("an answer of %d frames", n)
	}
	m := Message{Seq: binary.BigEndian.Uint64(frames[n-2]), Payload: frames[n-1]}
	if n == 4 {
		m.Topic = string(frames[1])
	}
	if m.Seq == endSeq && len(m.Payload) == 0 {
		return Message{End: true}, nil
	}
	return m, nil
}

// ReplayRequest returns the frames that ask a replay endpoint, from a DEALER, for all
// that it has from a number on.
func ReplayRequest(from uint64) [][]byte {
	return [][]byte{{}, binary.BigEndian.AppendUint64(nil, from)}
}
