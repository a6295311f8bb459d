package events

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// Config is what a publisher works with.
type Config struct {
	// Memory and Disk hold the chunks; Disk may be nil.
	Memory, Disk Source
	Catalog      Catalog
	Sink         Sink
	// Wake has a token when a source has changed.
	Wake <-chan struct{}
	// Topic names a namespace's stream.
	Topic func(*kv.NamespaceSpec) string
	// BufferBatches and BufferBytes bound what is kept for replay.
	BufferBatches, BufferBytes int
	Now                        func() time.Time
	Log                        *slog.Logger
}

const (
	// gather is how long changes are collected for a batch, pace the pause between
	// the parts of an announcement.
	gather = 5 * time.Millisecond
	pace   = time.Millisecond
	// askAgain is how long after an announcement another one of the same stream may
	// be asked for.
	askAgain = 10 * time.Second
	// readChanges is how many changes are read in one go.
	readChanges = 1024
)

// phase is how far a stream's announcement has got.
type phase uint8

const (
	told    phase = iota // subscribers know what is there
	waiting              // AllBlocksCleared is told, a walk will follow
	walking              // the walk is under way
)

// medium is a source as it is read.
type medium struct {
	source  Source
	name    string
	done    uint64 // number of the latest change that was read
	changes []Change
}

// Publisher tells subscribers what comes and goes. Run has it all, but for Replay
// and Stats, which may be called by anybody.
type Publisher struct {
	cfg     Config
	media   []*medium // the memory's last
	streams map[Namespace]*stream
	phases  map[*stream]phase
	asked   map[*stream]time.Time // when a stream was announced last
	encoder *kvevents.Encoder
	// at and cursor are where the walk is: media before at are done, of that one the
	// records below cursor.
	at     int
	cursor uint32
	// learned: the catalog was read since the latest sign of an unknown namespace.
	learned bool

	buffer buffer

	requests struct {
		sync.Mutex
		topics map[string]bool
	}
	request chan struct{} // has a token when there are requests

	names struct {
		sync.Mutex
		of    map[Namespace]string
		taken map[string]bool
	}

	stats struct {
		sync.Mutex
		Stats
	}
}

// New makes a publisher.
func New(cfg *Config) *Publisher {
	p := &Publisher{
		cfg: *cfg, streams: map[Namespace]*stream{}, phases: map[*stream]phase{}, asked: map[*stream]time.Time{},
		encoder: kvevents.NewEncoder(), request: make(chan struct{}, 1),
		buffer: buffer{limit: cfg.BufferBatches, limitBytes: cfg.BufferBytes, first: map[string]uint64{}, next: map[string]uint64{}},
	}
	p.requests.topics = map[string]bool{}
	p.names.of, p.names.taken = map[Namespace]string{}, map[string]bool{}
	p.stats.Events, p.stats.Announcements = map[EventKind]uint64{}, map[Reason]uint64{}
	if cfg.Disk != nil {
		p.media = append(p.media, &medium{source: cfg.Disk, name: kvevents.MediumStorage})
	}
	p.media = append(p.media, &medium{source: cfg.Memory, name: kvevents.MediumCPU})
	for _, m := range p.media {
		_, _, m.done = m.source.Walk(nil, 0)
	}
	return p
}

// Run publishes until ctx ends.
func (p *Publisher) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	p.learn()
	for {
		pause := pace
		if !p.busy() {
			pause = gather
			select {
			case <-ctx.Done():
				return
			case <-p.cfg.Wake:
			case <-p.request:
			}
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		p.round()
	}
}

// busy tells whether there is something to do without a change.
func (p *Publisher) busy() bool { return len(p.phases) > 0 }

// round tells what has changed, and goes a step on with the announcement.
func (p *Publisher) round() {
	p.takeRequests()
	p.learned = false
	p.tell(len(p.media), 0)
	if p.busy() {
		p.step()
	}
	p.flush()
}

// tell tells what has changed; of one of the media not beyond a change. False:
// changes were lost, and everything begins anew.
func (p *Publisher) tell(until int, seq uint64) bool {
	// The memory is read first and told last: what is gone from it to the disk has
	// come there before, and is told so.
	for i := len(p.media) - 1; i >= 0; i-- {
		last := ^uint64(0)
		if i == until {
			last = seq
		}
		if !p.media[i].read(last) {
			p.startOver()
			return false
		}
	}
	for i, m := range p.media {
		for j := range m.changes {
			p.apply(i, &m.changes[j])
		}
		m.changes = m.changes[:0]
	}
	return true
}

// read reads changes up to a number. False: some are lost.
func (m *medium) read(last uint64) bool {
	for m.done < last {
		before := len(m.changes)
		limit := min(uint64(readChanges), last-m.done)
		changes, complete := m.source.Changes(m.changes, m.done, int(limit)) //nolint:gosec // at most readChanges
		m.changes = changes
		if !complete {
			return false
		}
		if len(changes) == before {
			break
		}
		m.done = changes[len(changes)-1].Seq
	}
	return true
}

// startOver announces everything anew.
func (p *Publisher) startOver() {
	for _, m := range p.media {
		m.changes = m.changes[:0]
		_, _, m.done = m.source.Walk(nil, 0)
	}
	p.cfg.Log.Warn("KV events: changes of the store are lost, it was faster than could be told or its disk began anew; everything is announced anew")
	p.learn()
	for _, s := range p.streams {
		p.announce(s, Lost)
	}
	p.at, p.cursor = 0, 0
}

// apply tells one change of a medium.
func (p *Publisher) apply(of int, c *Change) {
	if c.Kind == Opened {
		p.learn()
		return
	}
	s := p.streams[c.Namespace]
	if s == nil && !p.learned {
		p.learn()
		s = p.streams[c.Namespace]
	}
	switch {
	case s == nil: // on the disk, of a model that nobody has loaded since; announced when it is
	case c.Kind == Cleared:
		p.announce(s, Reset)
	case p.known(s, of, c.Record):
		p.add(s, c.Kind, of, c)
	}
}

// known tells whether subscribers to the stream know of a medium's record.
func (p *Publisher) known(s *stream, of int, record uint32) bool {
	switch p.phases[s] {
	case waiting:
		return false
	case walking:
		return of < p.at || of == p.at && record < p.cursor
	}
	return true
}

func (p *Publisher) add(s *stream, kind Kind, of int, c *Change) {
	name := p.media[of].name
	s.add(kind, name, c.Group, &c.Hash)
	p.count(func(st *Stats) { st.Events[EventKind{kind, name}]++ })
}

// learn makes streams of the namespaces that are new.
func (p *Publisher) learn() {
	p.learned = true
	for _, known := range p.cfg.Catalog.Namespaces() {
		digest, spec := known.Digest, known.Spec
		if p.streams[digest] != nil {
			continue
		}
		topic := p.TopicOf(spec)
		s := &stream{spec: spec, topic: topic, next: uint64(p.cfg.Now().UnixMicro())} //nolint:gosec // after 1970
		p.streams[digest] = s
		p.cfg.Log.Info("KV events: a stream begins", "topic", topic, "model", spec.Model, "namespace", fmt.Sprintf("%x", digest[:8]))
		p.announce(s, Begun)
	}
}

// announce has all chunks of a stream told anew.
func (p *Publisher) announce(s *stream, why Reason) {
	s.pending = nil // of what is cleared nobody need hear
	s.clear()
	p.phases[s] = waiting
	p.asked[s] = p.cfg.Now()
	p.count(func(st *Stats) { st.Announcements[why]++; st.Events[EventKind{Cleared, ""}]++ })
}

// step walks over some records of a medium.
func (p *Publisher) step() {
	if p.at == 0 && p.cursor == 0 {
		for s := range p.phases {
			p.phases[s] = walking
		}
	}
	at := p.at
	chunks, next, seq := p.media[at].source.Walk(nil, p.cursor)
	if !p.tell(at, seq) {
		return
	}
	for i := range chunks {
		if s := p.streams[chunks[i].Namespace]; s != nil && p.phases[s] == walking {
			p.add(s, Stored, at, &chunks[i])
		}
	}
	if p.cursor = next; next != 0 {
		return
	}
	if p.at++; p.at < len(p.media) {
		return
	}
	p.at = 0
	maps.DeleteFunc(p.phases, func(s *stream, ph phase) bool {
		s.announced = s.announced || ph == walking
		return ph == walking
	})
}

// flush publishes what is pending, and behind an announcement an empty batch.
func (p *Publisher) flush() {
	for _, s := range p.streams {
		for _, events := range s.batches() {
			p.publish(s, events)
		}
		if s.announced {
			p.publish(s, nil)
			s.announced = false
		}
	}
	p.count(func(st *Stats) { st.Told = p.media[len(p.media)-1].done })
}

func (p *Publisher) publish(s *stream, events []kvevents.Event) {
	payload, err := p.encoder.Encode(&kvevents.Batch{Time: float64(p.cfg.Now().UnixMicro()) / 1e6, Events: events})
	if err != nil {
		panic("BUG: " + err.Error())
	}
	begins := false
	if len(events) > 0 {
		_, begins = events[0].(*kvevents.AllBlocksCleared)
	}
	p.buffer.add(&Recorded{Topic: s.topic, Seq: s.next, Payload: payload, begins: begins})
	err = p.cfg.Sink.Publish(s.topic, s.next, payload)
	s.next++
	p.count(func(st *Stats) {
		st.Batches++
		st.Bytes += uint64(len(payload))
		if err != nil {
			st.SendErrors++
		}
	})
}
