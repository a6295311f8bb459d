package config

import (
	"net"
	"path/filepath"
	"strconv"
	"strings"
)

// KVEvents are the settings of lookupd's stream of KV events.
type KVEvents struct {
	// Endpoint is where the stream is published: EventsLocal, a tcp:// or ipc://
	// endpoint, empty for not at all.
	Endpoint string
	// ReplayEndpoint is where missed batches can be asked for, written likewise. With
	// EventsLocal for the stream it is local by default.
	ReplayEndpoint string
	// Topic is the pattern of a stream's topic; {model}, {host} and {namespace} stand
	// for what they say. Default DefaultEventsTopic.
	Topic string
	// BufferSteps is how many batches are kept for replay. Default 10000.
	BufferSteps int
	// HWM is how many batches may wait for one subscriber. Default 10000.
	HWM int
	// AllowRemote lets the endpoints be reached from other machines.
	AllowRemote bool
}

// EventsLocal is the endpoint in the runtime directory.
const EventsLocal = "local"

// DefaultEventsTopic is as llm-d's indexer reads topics.
const DefaultEventsTopic = "kv@{host}@{model}"

const maxEventBatches = 1 << 20

func (e *KVEvents) setDefaults() {
	if e.Endpoint == "none" {
		e.Endpoint = ""
	}
	if e.ReplayEndpoint == "" && e.Endpoint == EventsLocal {
		e.ReplayEndpoint = EventsLocal
	}
	if e.ReplayEndpoint == "none" {
		e.ReplayEndpoint = ""
	}
	if e.Topic == "" {
		e.Topic = DefaultEventsTopic
	}
	if e.BufferSteps == 0 {
		e.BufferSteps = 10_000
	}
	if e.HWM == 0 {
		e.HWM = 10_000
	}
}

func (e *KVEvents) fields() []Field {
	return []Field{
		named(SectionLookupd, "kv_events_endpoint", "none", "`endpoint` of the stream of KV events: local (in the runtime directory), tcp://127.0.0.1:5557, ipc:///path, or none; see docs/events.md").text(&e.Endpoint),
		named(SectionLookupd, "kv_events_replay_endpoint", "local beside a local stream, else none", "`endpoint` at which subscribers ask for batches they have missed").text(&e.ReplayEndpoint),
		named(SectionLookupd, "kv_events_topic", DefaultEventsTopic, "`pattern` of the topics, one for each kind of KV cache: {model}, {host}, {namespace} (digits of its digest)").text(&e.Topic),
		named(SectionLookupd, "kv_events_buffer_steps", "10000", "`batches` that are kept for replay").number(&e.BufferSteps),
		named(SectionLookupd, "kv_events_hwm", "10000", "`batches` that may wait for one subscriber; a slower one loses some").number(&e.HWM),
		named(SectionLookupd, "kv_events_allow_remote", "false", "let the endpoints be addresses that other machines reach; there is no password on them").bool(&e.AllowRemote),
	}
}

func (e *KVEvents) faults() (faults []error) {
	if e.Endpoint == "" && e.ReplayEndpoint != "" {
		faults = append(faults, fault("kv_events_replay_endpoint", "%q, but no kv_events_endpoint whose batches could be asked for", e.ReplayEndpoint))
	}
	for key, endpoint := range map[string]string{"kv_events_endpoint": e.Endpoint, "kv_events_replay_endpoint": e.ReplayEndpoint} {
		if why := e.badEndpoint(endpoint); why != "" {
			faults = append(faults, fault(key, "%q %s", endpoint, why))
		}
	}
	if e.Endpoint != "" && e.Endpoint == e.ReplayEndpoint && e.Endpoint != EventsLocal {
		faults = append(faults, fault("kv_events_replay_endpoint", "%q is the stream's own endpoint; give it another port", e.ReplayEndpoint))
	}
	for key, n := range map[string]int{"kv_events_buffer_steps": e.BufferSteps, "kv_events_hwm": e.HWM} {
		if n < 1 || n > maxEventBatches {
			faults = append(faults, fault(key, "%d; want 1 to %d", n, maxEventBatches))
		}
	}
	return faults
}

// badEndpoint says what is wrong with an endpoint, "" for nothing.
func (e *KVEvents) badEndpoint(endpoint string) string {
	if endpoint == "" || endpoint == EventsLocal {
		return ""
	}
	if path, ok := strings.CutPrefix(endpoint, "ipc://"); ok {
		if !filepath.IsAbs(path) {
			return "has no absolute path; want ipc:///path"
		}
		return ""
	}
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	host, port, err := net.SplitHostPort(address)
	if !ok || err != nil {
		return "is no endpoint; want local, tcp://127.0.0.1:5557, ipc:///path or none"
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "has no port; want a number from 1 to 65535"
	}
	ip := net.ParseIP(host)
	switch {
	case host != "*" && host != "localhost" && ip == nil:
		return "names no address of this machine; want tcp://127.0.0.1:5557, or tcp://*:5557 with kv_events_allow_remote"
	case !e.AllowRemote && host != "localhost" && (ip == nil || !ip.IsLoopback()):
		return "can be reached from other machines, and asks for no password; use 127.0.0.1, or say kv_events_allow_remote"
	}
	return ""
}

// EndpointAt resolves EventsLocal to a socket in the runtime directory.
func EndpointAt(endpoint, dir, socket string) string {
	if endpoint == EventsLocal {
		return "ipc://" + filepath.Join(dir, socket)
	}
	return endpoint
}

// ConnectTo is what a process of this machine connects to for a bound endpoint.
func ConnectTo(endpoint string) string {
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return endpoint
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return endpoint
	}
	switch ip := net.ParseIP(host); {
	case host == "*" || host == "localhost" || ip != nil && ip.IsUnspecified() && ip.To4() != nil:
		host = "127.0.0.1"
	case ip != nil && ip.IsUnspecified():
		host = "::1"
	}
	return "tcp://" + net.JoinHostPort(host, port)
}
