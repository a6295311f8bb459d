package worker

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/pulse"
	"github.com/mooncake-sidecar/sidecar/store"
)

// Conn is a session's socket. internal/unixmsg implements it.
type Conn interface {
	io.ReadWriteCloser
	// WriteFDs writes all of p with descriptors at its first byte; they stay the
	// caller's.
	WriteFDs(p []byte, fds []int) error
	// TakeFDs hands over the descriptors that came with what was read, which
	// must be n.
	TakeFDs(n int) ([]int, error)
	SetReadDeadline(t time.Time) error
	// PeerPID is the peer's process id as the kernel says it.
	PeerPID() int
}

// Board is a rank's job board: words that the engine writes and we read.
type Board interface {
	// Word reads word i, 0 <= i < the registered slots.
	Word(i int) uint64
	// Close unmaps the board.
	Close() error
}

// Config of a Server. The fields without a default are required.
type Config struct {
	// Store is where the chunks are. Its calls fail with store.ErrUnavailable
	// while it is away.
	Store store.Store
	// StoreReady tells whether it is there now.
	StoreReady func() bool
	// Devices by the name that a registration asks for.
	Devices map[string]Device
	// MapBoard maps a job board of exactly so many words. The descriptor stays
	// the caller's.
	MapBoard func(fd, slots int) (Board, error)
	// KeptSegments calls send, once, with the store segments that this process
	// keeps alive and their descriptors, which stay its own. Nil: none are.
	KeptSegments func(send func(infos []connector.SegmentInfo, fds []int) error) error
	// OnSessions, when not nil, is told the number of engine sessions whenever it
	// changes. Calls come one at a time, under a lock of the server's: it must
	// return promptly and not call the server.
	OnSessions func(active int)
	// Pulse, when not nil, is joined by every pipeline, which beats at each job,
	// each copy batch and each Tick of the server.
	Pulse *pulse.Group
	// LoadTimes and StoreTimes are told how long jobs took.
	LoadTimes, StoreTimes JobTimes
	Log                   *slog.Logger

	// What a welcome says.
	Version     string
	PID         int
	Autostarted bool

	// Verify compares the checksums of loaded shards whatever a registration asks
	// for.
	Verify bool
	// LoadPipelines bounds the loads of a session under way, most of which wait for
	// the store or for their turn to copy; default 32. As many short ones may be
	// beside them, and those that wait for a slower tier are not counted.
	LoadPipelines int
	// LoadPatience is how long stores wait for a load, of whatever session, that does
	// not move on, because the device or the store hangs; default 500 ms.
	LoadPatience time.Duration
	// QueueJobs bounds the jobs that wait, of loads and of stores each; default
	// 1024. QueueBytes bounds the memory of all that wait or run; default 32 MiB.
	// A job beyond is dropped with the reason queue_full; a load beyond drops the
	// newest stores instead. All sessions together have room for what eight of them
	// may have; beyond that stores are dropped.
	QueueJobs  int
	QueueBytes int64
	// A copy batch has at most BatchShards shards and, but for a single one,
	// BatchBytes bytes; defaults 1024 and 64 MiB. Before every shard a
	// job looks whether it was cancelled: a shard is how long a cancel can take.
	BatchShards int
	BatchBytes  int
	// StorePace is the share of the time, in percent, for which stores copy at most,
	// while the engine computes in the rest; default 100. Below, batches of stores
	// are smaller in proportion.
	StorePace int
	// StoreTimeout bounds one call to the store; default 2 s.
	StoreTimeout time.Duration
	// HelloTimeout bounds the wait for a hello; default 5 s.
	HelloTimeout time.Duration
	// MaxConns bounds the connections at one time; default 256.
	MaxConns int

	// Faults are for tests of the fence.
	Faults Faults
}

// Faults makes a server misbehave, so that tests can show what the correct
// behaviour prevents. The zero value is a correct server.
type Faults struct {
	// CopyDelay is slept between the look at the job board and the copy.
	CopyDelay time.Duration
	// IgnoreCancel acknowledges a cancel at once and copies on.
	IgnoreCancel bool
	// NoVerify takes loaded bytes for good whatever their checksum.
	NoVerify bool
}

// SetDefaults fills what was left at zero.
func (c *Config) SetDefaults() {
	setDefault(&c.LoadPipelines, 32)
	setDefault(&c.LoadPatience, 500*time.Millisecond)
	setDefault(&c.StorePace, 100)
	setDefault(&c.QueueJobs, 1024)
	setDefault(&c.QueueBytes, 32<<20)
	setDefault(&c.BatchShards, 1024)
	setDefault(&c.BatchBytes, 64<<20)
	setDefault(&c.StoreTimeout, 2*time.Second)
	setDefault(&c.HelloTimeout, 5*time.Second)
	setDefault(&c.MaxConns, 256)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports everything that is wrong.
func (c *Config) Validate() error {
	var errs []error
	need := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("worker: "+format, args...))
		}
	}
	need(c.Store != nil, "no store")
	need(c.StoreReady != nil, "no store_ready")
	need(len(c.Devices) > 0, "no devices")
	need(c.MapBoard != nil, "no map_board")
	need(c.Log != nil, "no logger")
	need(c.LoadPipelines >= 1, "load_pipelines is %d, want at least 1", c.LoadPipelines)
	need(c.LoadPatience > 0, "load_patience is %v, want more than 0", c.LoadPatience)
	need(c.QueueJobs >= 1, "queue_jobs is %d, want at least 1", c.QueueJobs)
	need(c.QueueBytes >= 1, "queue_bytes is %d, want at least 1", c.QueueBytes)
	need(c.BatchShards >= 1, "batch_shards is %d, want at least 1", c.BatchShards)
	need(c.BatchBytes >= 1, "batch_bytes is %d, want at least 1", c.BatchBytes)
	need(c.StorePace >= 1 && c.StorePace <= 100, "store_pace is %d, want 1 to 100", c.StorePace)
	need(c.StoreTimeout > 0, "store_timeout is %v, want more than 0", c.StoreTimeout)
	need(c.HelloTimeout > 0, "hello_timeout is %v, want more than 0", c.HelloTimeout)
	need(c.MaxConns >= 1, "max_conns is %d, want at least 1", c.MaxConns)
	return errors.Join(errs...)
}
