package daemon

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/zmqx"
	"github.com/mooncake-sidecar/sidecar/lookupd"
	"github.com/mooncake-sidecar/sidecar/lookupd/events"
	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// eventBufferBytes bounds what is kept for replay, whatever the number of batches.
const eventBufferBytes = 64 << 20

// eventStreams publishes the store's KV events. Its methods may be called on nil:
// nothing is published.
type eventStreams struct {
	publisher        *events.Publisher
	sockets          *zmqx.Publisher
	replayer         *zmqx.Responder // nil: there is no replay
	endpoint, replay string          // for this machine's processes
}

// publishEvents starts to publish, if that is configured. Where the endpoints can't
// be had an autostarted daemon goes without: its engine is more important.
func publishEvents(ctx context.Context, cfg *config.LookupdConfig, dir string, master *embedded.Master, tier *disk.Tier, transport *zmqx.Transport, background *sync.WaitGroup, log *slog.Logger) (*eventStreams, error) {
	if cfg.KVEvents.Endpoint == "" {
		return nil, nil //nolint:nilnil // nil is what publishes nothing
	}
	s, err := newEventStreams(&cfg.KVEvents, dir, master, tier, transport, log)
	switch {
	case err != nil && cfg.Autostarted:
		log.Error("KV events are not published", "error", err)
		return nil, nil //nolint:nilnil // as above
	case err != nil:
		return nil, fmt.Errorf("publish KV events: %w", err)
	}
	background.Go(func() { s.publisher.Run(ctx) })
	log.Info("KV events are published", "endpoint", s.endpoint, "replay", s.replay)
	return s, nil
}

func newEventStreams(cfg *config.KVEvents, dir string, master *embedded.Master, tier *disk.Tier, transport *zmqx.Transport, log *slog.Logger) (*eventStreams, error) {
	endpoint := config.EndpointAt(cfg.Endpoint, dir, config.EventsSocket)
	replay := config.EndpointAt(cfg.ReplayEndpoint, dir, config.EventsReplaySocket)
	s := &eventStreams{endpoint: config.ConnectTo(endpoint), replay: config.ConnectTo(replay)}
	var err error
	if s.sockets, err = transport.Publish(endpoint, cfg.HWM); err != nil {
		return nil, err
	}
	wake := make(chan struct{}, 1)
	master.WakeOnChange(wake)
	var below events.Source // not a tier that is nil
	if tier != nil {
		tier.WakeOnChange(wake)
		below = diskChanges{tier}
	}
	s.publisher = events.New(&events.Config{
		Memory: memoryChanges{master}, Disk: below, Catalog: namespaces{master}, Sink: eventSink{s.sockets}, Wake: wake,
		Topic: topicOf(cfg.Topic), BufferBatches: cfg.BufferSteps, BufferBytes: eventBufferBytes, Now: time.Now, Log: log,
	})
	if replay == "" {
		log.Warn("KV events: nobody can ask for what was published before a subscription, or for what was lost; set kv_events_replay_endpoint")
		return s, nil
	}
	// All that is kept, and the end, for a client that reads when it has come.
	if s.replayer, err = transport.ListenStream(replay, cfg.BufferSteps+1, s.answerReplay); err != nil {
		return nil, errors.Join(err, s.sockets.Close())
	}
	return s, nil
}

// topicOf makes topics of a pattern.
func topicOf(pattern string) func(*kv.NamespaceSpec) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return func(spec *kv.NamespaceSpec) string {
		digest := spec.Digest()
		return strings.NewReplacer("{model}", spec.Model, "{host}", host, "{namespace}", fmt.Sprintf("%x", digest[:8])).Replace(pattern)
	}
}

// streamOf tells an engine where its events are.
func (s *eventStreams) streamOf(spec *kv.NamespaceSpec) lookupd.EventStream {
	if s == nil {
		return lookupd.EventStream{}
	}
	return lookupd.EventStream{Endpoint: s.endpoint, Replay: s.replay, Topic: s.publisher.TopicOf(spec)}
}

func (s *eventStreams) stats() (stats events.Stats, publishes bool) {
	if s == nil {
		return events.Stats{}, false
	}
	return s.publisher.Stats(), true
}

// answerReplay answers as vLLM's publisher does: the batches from the number on that
// is asked for, then one without a topic that is numbered -1. A second frame, which
// vLLM does not know, narrows it to one topic.
func (s *eventStreams) answerReplay(frames [][]byte, reply func([][]byte) bool) {
	if len(frames) > 2 || len(frames[0]) != 8 {
		return
	}
	var topic *string
	if len(frames) == 2 {
		text := string(frames[1])
		topic = &text
	}
	for _, r := range s.publisher.Replay(topic, binary.BigEndian.Uint64(frames[0])) {
		if !reply([][]byte{[]byte(r.Topic), binary.BigEndian.AppendUint64(nil, r.Seq), r.Payload}) {
			return
		}
	}
	reply([][]byte{{}, binary.BigEndian.AppendUint64(nil, math.MaxUint64), {}})
}

// close ends it. Run may still go on, and sends nothing then.
func (s *eventStreams) close(log *slog.Logger) {
	if s == nil {
		return
	}
	err := s.sockets.Close()
	if s.replayer != nil {
		err = errors.Join(err, s.replayer.Close())
	}
	if err != nil {
		log.Warn("KV events", "error", err)
	}
}

// eventSink sends batches as vLLM does: topic, number, batch.
type eventSink struct{ sockets *zmqx.Publisher }

// Publish implements events.Sink.
func (e eventSink) Publish(topic string, seq uint64, payload []byte) error {
	return e.sockets.Send([]byte(topic), binary.BigEndian.AppendUint64(nil, seq), payload)
}
