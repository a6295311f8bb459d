package events

import (
	"fmt"
	"maps"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// EventKind labels events for counting.
type EventKind struct {
	Kind   Kind
	Medium string // empty for Cleared
}

// Stats counts since the start.
type Stats struct {
	Events         map[EventKind]uint64 // by hash, not by message
	Batches, Bytes uint64
	SendErrors     uint64
	// Announcements are counted by why they were made.
	Announcements map[Reason]uint64
	Replays       uint64
	// Told is the number of the latest change of the memory that was told.
	Told uint64
	// Buffered batches and their bytes can be asked for.
	Buffered, BufferedBytes int
}

// Reason says why a stream is announced.
type Reason string

// The reasons.
const (
	Begun Reason = "begun" // the stream is new
	Reset Reason = "reset" // the namespace was reset
	Lost  Reason = "lost"  // changes came too fast to be told, or the disk began anew
	Asked Reason = "asked" // somebody has missed more than the buffer has
)

// Stats returns the counters.
func (p *Publisher) Stats() Stats {
	batches, bytes := p.buffer.size()
	p.stats.Lock()
	defer p.stats.Unlock()
	out := p.stats.Stats
	out.Events, out.Announcements = maps.Clone(p.stats.Events), maps.Clone(p.stats.Announcements)
	out.Buffered, out.BufferedBytes = batches, bytes
	return out
}

func (p *Publisher) count(change func(*Stats)) {
	p.stats.Lock()
	defer p.stats.Unlock()
	change(&p.stats.Stats)
}

// TopicOf returns the topic of a namespace's stream. Of two that would have the same
// the later one has its digest behind it.
func (p *Publisher) TopicOf(spec *kv.NamespaceSpec) string {
	digest := Namespace(spec.Digest())
	p.names.Lock()
	defer p.names.Unlock()
	topic, known := p.names.of[digest]
	if known {
		return topic
	}
	if topic = p.cfg.Topic(spec); p.names.taken[topic] {
		topic = fmt.Sprintf("%s@%x", topic, digest[:4])
	}
	p.names.of[digest], p.names.taken[topic] = topic, true
	return topic
}

// Replay returns the buffered batches of a topic, or with nil of all, from a number
// on. A stream of which the asker can't know the state by them is announced anew,
// to all subscribers, unless it was so lately.
func (p *Publisher) Replay(topic *string, from uint64) []Recorded {
	found, lacking := p.buffer.from(topic, from)
	p.count(func(s *Stats) { s.Replays++ })
	if len(lacking) > 0 {
		p.requests.Lock()
		for _, t := range lacking {
			p.requests.topics[t] = true
		}
		p.requests.Unlock()
		select {
		case p.request <- struct{}{}:
		default: // it will look
		}
	}
	return found
}

// takeRequests begins the announcements that were asked for.
func (p *Publisher) takeRequests() {
	p.requests.Lock()
	topics := p.requests.topics
	p.requests.topics = map[string]bool{}
	p.requests.Unlock()
	if len(topics) == 0 {
		return
	}
	now := p.cfg.Now()
	for _, s := range p.streams {
		if topics[s.topic] && now.Sub(p.asked[s]) >= askAgain {
			p.announce(s, Asked)
		}
	}
}
