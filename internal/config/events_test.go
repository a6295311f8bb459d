package config

import (
	"errors"
	"strings"
	"testing"
)

func TestMasterEvents(t *testing.T) {
	for endpoint, want := range map[string]string{
		"": "", "none": "", "tcp://10.0.0.1:5557": "", "tcp://master:5557": "", "tcp://[::1]:5557": "", "ipc:///run/x": "",
		"tcp://*:5557": "no host", "tcp://0.0.0.0:5557": "no host", "tcp://:5557": "no host", "ipc://x": "absolute", "master:5557": "no endpoint",
		"tcp://master": "no endpoint", "tcp://master:0": "no port", "tcp://master:x": "no port", "local": "no endpoint",
	} {
		m := Mooncake{Events: endpoint}
		m.setDefaults()
		err := errors.Join(m.faults(false)...)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", endpoint, err, want)
		}
	}
}

func TestEventEndpoints(t *testing.T) {
	for endpoint, want := range map[string]string{
		"": "", "local": "", "none": "", "tcp://127.0.0.1:5557": "", "tcp://[::1]:5557": "", "tcp://localhost:1": "", "ipc:///run/x": "",
		"tcp://*:5557": "kv_events_allow_remote", "tcp://0.0.0.0:5557": "kv_events_allow_remote", "tcp://10.0.0.1:5557": "kv_events_allow_remote",
		"tcp://box:5557": "no address", "ipc://x": "absolute", "5557": "no endpoint", "tcp://127.0.0.1": "no endpoint", "tcp://127.0.0.1:0": "no port",
	} {
		e := KVEvents{Endpoint: endpoint}
		e.setDefaults()
		err := errors.Join(e.faults()...)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", endpoint, err, want)
		}
		e.AllowRemote = true
		if err := errors.Join(e.faults()...); want == "kv_events_allow_remote" && err != nil {
			t.Errorf("%q, allowed: %v", endpoint, err)
		}
	}
	for _, e := range []KVEvents{
		{ReplayEndpoint: "local"}, {Endpoint: "tcp://127.0.0.1:1", ReplayEndpoint: "tcp://127.0.0.1:1"}, {Endpoint: "local", HWM: -1}, {Endpoint: "local", BufferSteps: 1 << 30},
	} {
		e.setDefaults()
		if len(e.faults()) != 1 {
			t.Errorf("%+v: %v", e, e.faults())
		}
	}
}

func TestConnectTo(t *testing.T) {
	for bound, want := range map[string]string{
		"tcp://*:5557": "tcp://127.0.0.1:5557", "tcp://0.0.0.0:1": "tcp://127.0.0.1:1", "tcp://[::]:1": "tcp://[::1]:1",
		"tcp://10.0.0.1:2": "tcp://10.0.0.1:2", "ipc:///a": "ipc:///a", "tcp://localhost:3": "tcp://127.0.0.1:3",
	} {
		if got := ConnectTo(bound); got != want {
			t.Errorf("%s: %s, want %s", bound, got, want)
		}
	}
}
