package sideproc

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/cluster"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/native"
)

// Memory is the memory file that calls are about.
type Memory interface {
	Bytes() []byte
	// FD is its descriptor, which stays the owner's.
	FD() int
}

// Limits are how long things may take, before the process is taken for stuck and
// killed. What is 0 has a default.
type Limits struct {
	// Start is from the start of the process to its readiness. Default 60s: memory
	// that is lent to the cluster is allocated in it.
	Start time.Duration
	// Question is for existence and removal, Transfer for puts and gets. Default 60s
	// and 2m: it is mostly the master who is slow, whom a new process does not make
	// faster, and with the process goes the memory that it lends the cluster. Callers
	// have their contexts.
	Question, Transfer time.Duration
	// Failure is how long a transfer may take to fail and count as ended. Mooncake
	// gives one up after a minute and does not end it: it may write to the memory
	// later, when that is another's. Default 1s: refused connections are within.
	Failure time.Duration
	// Ping is how often the process is asked whether it lives, which no master has a
	// part in, and Pong how long it may take to say so. Default 2s and 10s.
	Ping, Pong time.Duration
	// Close is how long a process may take to end by itself. Default 3s.
	Close time.Duration
	// FirstPause and LongestPause are between two starts. Default 100ms and 10s.
	FirstPause, LongestPause time.Duration
}

func (l *Limits) setDefaults() {
	for _, d := range []struct {
		to    *time.Duration
		value time.Duration
	}{
		{&l.Start, time.Minute},
		{&l.Question, time.Minute},
		{&l.Transfer, 2 * time.Minute},
		{&l.Failure, time.Second},
		{&l.Ping, 2 * time.Second},
		{&l.Pong, 10 * time.Second},
		{&l.Close, 3 * time.Second},
		{&l.FirstPause, 100 * time.Millisecond},
		{&l.LongestPause, 10 * time.Second},
	} {
		if *d.to <= 0 {
			*d.to = d.value
		}
	}
}

// Config is what New needs.
type Config struct {
	// Python is an interpreter that has Mooncake's wheel (store_python).
	Python string
	// Cluster says how the cluster is reached.
	Cluster cluster.Config
	Memory  Memory
	// Environ is the environment of the process, as os.Environ has it.
	Environ []string
	Limits  Limits
	// Holds, if not nil, is told of each process before it may touch the memory, and
	// what it returns is called when that is dead.
	Holds func(pid int) (release func(), err error)
	// NoProbe leaves out the object that is put, got and compared at each start.
	NoProbe bool
	Log     *slog.Logger
}

// settings are sent to the process.
type settings struct {
	MemoryBytes        uint64 `json:"memory_bytes"`
	LocalHostname      string `json:"local_hostname"`
	MetadataServer     string `json:"metadata_server"`
	MasterAddress      string `json:"master_server_address"`
	Protocol           string `json:"protocol"`
	DeviceName         string `json:"device_name"`
	GlobalSegmentBytes uint64 `json:"global_segment_size"`
	LocalBufferBytes   uint64 `json:"local_buffer_size"`
	TenantID           string `json:"tenant_id"`
	Probe              bool   `json:"probe"`
	// Threads and Movers are as many as there may be questions and transfers under way.
	Threads int `json:"threads"`
	Movers  int `json:"movers"`
}

// settings returns what the process is to do.
func (c *Config) settings() (*settings, error) {
	host, err := c.Cluster.FindLocalHostname()
	if err != nil {
		return nil, err
	}
	s := &settings{
		MemoryBytes: uint64(len(c.Memory.Bytes())), LocalHostname: host, MetadataServer: c.Cluster.MetadataServer,
		MasterAddress: c.Cluster.MasterServerAddress, Protocol: c.Cluster.Protocol, DeviceName: c.Cluster.DeviceName,
		GlobalSegmentBytes: c.Cluster.GlobalSegmentBytes,
		// Every transfer is from or to registered memory: none goes through a buffer of
		// Mooncake's.
		LocalBufferBytes: 0,
		Probe:            !c.NoProbe,
	}
	if c.Cluster.TenantID != cluster.DefaultTenant {
		s.TenantID = c.Cluster.TenantID // older wheels have no such argument
	}
	for _, l := range lanes {
		if l.transfer {
			s.Movers += l.width
		} else {
			s.Threads += l.width
		}
	}
	return s, nil
}

// environ returns the process's environment.
func environ(from []string) []string {
	env := slices.Clone(from)
	for _, v := range native.Environment() {
		if !slices.ContainsFunc(env, func(entry string) bool { return strings.HasPrefix(entry, v.Name+"=") }) {
			env = append(env, v.Name+"="+v.Value)
		}
	}
	return env
}

// hello is the first thing the process says.
type hello struct {
	Protocol int    `json:"protocol"`
	PID      int    `json:"pid"`
	Python   string `json:"python"`
}

// ready says what became of the settings.
type ready struct {
	Stage    string            `json:"stage"`
	Code     int32             `json:"code"`
	Text     string            `json:"text"`
	Segment  string            `json:"segment"`
	Versions map[string]string `json:"versions"`
}

// maxGreeting bounds a greeting's JSON.
const maxGreeting = 16 << 10

// greeting reads one of the process's first two frames.
func greeting(f frame, kind byte, into any) error {
	if f.kind != kind || len(f.body) > maxGreeting {
		return fmt.Errorf("%w: kind %d with %d bytes, want kind %d", errFrame, f.kind, len(f.body), kind)
	}
	if err := json.Unmarshal(f.body, into); err != nil {
		return fmt.Errorf("%w: %w", errFrame, err)
	}
	return nil
}

var errSetup = errors.New("no connection to the Mooncake cluster")

// fault returns what went wrong in the setup, nil if nothing did.
func (r *ready) fault(c *Config) error {
	if r.Code == 0 {
		return nil
	}
	cause := &mooncake.Error{Op: r.Stage, Code: mooncake.Code(r.Code), Text: textOf([]byte(r.Text))}
	advice := ""
	switch r.Stage {
	case "import":
		advice = fmt.Sprintf("is the wheel mooncake-transfer-engine installed for %s (store_python)?", c.Python)
	case "setup":
		advice = fmt.Sprintf("do the master (%s) and the metadata server (%s) run, and can they be reached by %s?",
			c.Cluster.MasterServerAddress, c.Cluster.MetadataServer, c.Cluster.Protocol)
	case "register":
		advice = "with RDMA the memory is locked: is the limit of locked memory (ulimit -l) large enough?"
	case "probe":
		advice = fmt.Sprintf("does the wheel (%s) have the version of the cluster's master? A mismatch passes the setup and fails here", r.Versions["mooncake"])
	}
	return fmt.Errorf("%w: %w; %s", errSetup, cause, advice)
}
