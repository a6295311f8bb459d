package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/evict"
)

// Common is what all daemons of a node share.
type Common struct {
	// RuntimeDir holds the sockets; see docs/protocol.md. Empty: see
	// DefaultRuntimeDir.
	RuntimeDir string
	// LogLevel is debug, info, warn or error. Default info.
	LogLevel string
	// LogFormat is text, json, journal, or auto: what fits where the log goes.
	// Default auto.
	LogFormat string
	// GroupAccess lets members of the daemon's group use its sockets, for daemons
	// that serve engines of other users. Default false: only the daemon's own user
	// may.
	GroupAccess bool
	// Linger is how long an autostarted daemon stays after its last session.
	// Default 15m.
	Linger time.Duration
	// Autostarted: a shim started the daemon. It ends by itself (Linger), and the
	// shim may kill it. Set by flag or environment only.
	Autostarted bool
}

// HTTP is where a daemon answers health and metrics besides its socket in the
// runtime directory.
type HTTP struct {
	// HTTPListen is a TCP address, empty for none. An autostarted daemon listens
	// on none: two of them would have one environment.
	HTTPListen string
	// HTTPAllowRemote lets HTTPListen be another address than loopback.
	HTTPAllowRemote bool
}

// LookupdConfig is the configuration of mooncake-lookupd.
type LookupdConfig struct {
	Common
	HTTP
	// StoreBytes is the size of the shared-memory store. Default: a quarter of the
	// memory, at least 256 MiB.
	StoreBytes Size
	// NUMA says whether a new store's memory is divided between the machine's NUMA
	// nodes: NUMAAuto, the default, or NUMAOff.
	NUMA string
	// HugePages says whether the store asks for its memory to be on huge pages,
	// whatever the kernel's own settings but deny: HugePagesAuto, the default, or
	// HugePagesOff. It takes about a second for a GiB, in the background of the first
	// start, and is given up where memory is in too many pieces.
	HugePages string
	// LeaseTTL is how long a lookup keeps the chunks of its hit from eviction
	// unless the engine releases them earlier. Default 30s.
	LeaseTTL time.Duration
	// EvictionPolicy is the name of the policy by which chunks go when memory is
	// needed: see internal/evict. Default: evict.Default.
	EvictionPolicy string
	// DiskDir is the directory of the store's disk tier, empty for none.
	DiskDir string
	// DiskBytes is the size that the tier may reach. Default: four times StoreBytes.
	DiskBytes Size
	// DiskWriteBytesPerS bounds how fast the tier is written, a second. Default
	// 256MiB.
	DiskWriteBytesPerS Size
	// GRPCNoReflection keeps the gRPC services from describing themselves. Default
	// false: they do, to those who may call them.
	GRPCNoReflection bool
	KVEvents
	Mooncake
}

// WorkerConfig is the configuration of mooncake-worker.
type WorkerConfig struct {
	Common
	HTTP
	// Device names the device and its rank on the node: host-0, cuda-0. It is
	// part of the socket's name. Default host-0.
	Device string
	// Affinity says where the worker's threads run: AffinityAuto, the default, keeps
	// them to the cores next to a CUDA device, AffinityOff leaves them as they are.
	Affinity string
	// Verify compares the checksum of every loaded shard, whatever the engine
	// asks for. Default false: the engine decides.
	Verify bool
	// QueueJobs bounds the jobs that wait, loads and stores each, by engine rank; a job that finds
	// the queue full is dropped. Default 1024.
	QueueJobs int
	// LoadWorkers is how many loads are under way at a time, by engine rank: most wait
	// for the store, or for their turn to copy. As many short ones may be beside them,
	// and those that wait for a disk are not counted. Default 32.
	LoadWorkers int
	// StorePace is the share of the time, in percent, for which the stores of an engine
	// rank copy at most; what they copy before they publish it shrinks with it, down to
	// 4 MiB. Default 100: low priority is what keeps them out of the way.
	StorePace int
	// BatchBytes bounds what is copied in one go, and checked then. The cancel word
	// is looked at before every shard.
	// Default 64MiB.
	BatchBytes Size
}

// Values of LookupdConfig.NUMA.
const (
	NUMAAuto = "auto"
	NUMAOff  = "off"
)

// Values of LookupdConfig.HugePages.
const (
	HugePagesAuto = "auto"
	HugePagesOff  = "off"
)

const (
	minBatchBytes = 64 << 10
	maxLinger     = 30 * 24 * time.Hour
	// MinDiskBytes is the smallest disk tier that may be asked for.
	MinDiskBytes = 64 << 20
	maxDiskBytes = 256 << 40
	minDiskRate  = 1 << 20
)

// SetDefaults fills in what is unset. root is the root file system, from which
// the memory size is read.
func (c *LookupdConfig) SetDefaults(root fs.FS) {
	c.Common.setDefaults()
	if c.StoreBytes == 0 {
		c.StoreBytes = DefaultStoreBytes(root)
	}
	if c.EvictionPolicy == "" {
		c.EvictionPolicy = evict.Default
	}
	if c.NUMA == "" {
		c.NUMA = NUMAAuto
	}
	if c.HugePages == "" {
		c.HugePages = HugePagesAuto
	}
	if c.LeaseTTL == 0 {
		c.LeaseTTL = 30 * time.Second
	}
	c.KVEvents.setDefaults()
	c.Mooncake.setDefaults()
	if c.DiskDir != "" && c.DiskBytes == 0 {
		c.DiskBytes = max(4*c.StoreBytes, MinDiskBytes)
	}
	if c.DiskDir != "" && c.DiskWriteBytesPerS == 0 {
		c.DiskWriteBytesPerS = 256 << 20
	}
}

// Validate reports everything that is wrong, one line each.
//
// REQUIRES: SetDefaults.
func (c *LookupdConfig) Validate() error {
	return errors.Join(append(c.Common.faults(), c.faults()...)...)
}

// faults are those of the daemon's own section.
func (c *LookupdConfig) faults() []error {
	faults := c.HTTP.faults()
	if c.StoreBytes < MinStoreBytes {
		faults = append(faults, fault("store_bytes", "%s is less than the %s that a store needs", c.StoreBytes, Size(MinStoreBytes)))
	}
	if !evict.Known(c.EvictionPolicy) {
		faults = append(faults, fault("eviction_policy", "%q; want %s", c.EvictionPolicy, strings.Join(evict.Names(), ", ")))
	}
	if c.NUMA != NUMAAuto && c.NUMA != NUMAOff {
		faults = append(faults, fault("numa", "%q; want %s or %s", c.NUMA, NUMAAuto, NUMAOff))
	}
	if c.HugePages != HugePagesAuto && c.HugePages != HugePagesOff {
		faults = append(faults, fault("huge_pages", "%q; want %s or %s", c.HugePages, HugePagesAuto, HugePagesOff))
	}
	if c.LeaseTTL < time.Second || c.LeaseTTL > time.Hour {
		faults = append(faults, fault("lease_ttl", "%s; want 1s to 1h", c.LeaseTTL))
	}
	faults = append(append(faults, c.diskFaults()...), c.KVEvents.faults()...)
	return append(faults, c.Mooncake.faults(c.DiskDir != "")...)
}

// diskFaults are those of the disk tier.
func (c *LookupdConfig) diskFaults() (faults []error) {
	switch {
	case c.DiskDir == "" && c.DiskBytes != 0:
		faults = append(faults, fault("disk_bytes", "%s, but no disk_dir to have them in", c.DiskBytes))
	case c.DiskDir == "":
	case !strings.HasPrefix(c.DiskDir, "/"):
		faults = append(faults, fault("disk_dir", "%q is no absolute path", c.DiskDir))
	case c.DiskBytes < MinDiskBytes || c.DiskBytes > maxDiskBytes:
		faults = append(faults, fault("disk_bytes", "%s; want %s to %s", c.DiskBytes, Size(MinDiskBytes), Size(maxDiskBytes)))
	}
	if c.DiskDir != "" && c.DiskWriteBytesPerS < minDiskRate {
		faults = append(faults, fault("disk_write_bytes_per_s", "%s; want at least %s, and for no bound more than the disk can do", c.DiskWriteBytesPerS, Size(minDiskRate)))
	}
	return faults
}

// Values of WorkerConfig.Affinity.
const (
	AffinityAuto = "auto"
	AffinityOff  = "off"
)

// SetDefaults fills in what is unset.
func (c *WorkerConfig) SetDefaults() {
	c.Common.setDefaults()
	if c.Affinity == "" {
		c.Affinity = AffinityAuto
	}
	if c.Device == "" {
		c.Device = "host-0"
	}
	if c.QueueJobs == 0 {
		c.QueueJobs = 1024
	}
	if c.LoadWorkers == 0 {
		c.LoadWorkers = 32
	}
	if c.StorePace == 0 {
		c.StorePace = 100
	}
	if c.BatchBytes == 0 {
		c.BatchBytes = 64 << 20
	}
}

var deviceName = regexp.MustCompile(`^(host|cuda)-(0|[1-9][0-9]{0,3})$`)

// Validate reports everything that is wrong, one line each.
//
// REQUIRES: SetDefaults.
func (c *WorkerConfig) Validate() error {
	return errors.Join(append(c.Common.faults(), c.faults()...)...)
}

// faults are those of the daemon's own section.
func (c *WorkerConfig) faults() []error {
	faults := c.HTTP.faults()
	if !deviceName.MatchString(c.Device) {
		faults = append(faults, fault("device", "%q; want a kind and a number, host-0 or cuda-0", c.Device))
	}
	if c.Affinity != AffinityAuto && c.Affinity != AffinityOff {
		faults = append(faults, fault("affinity", "%q; want %s or %s", c.Affinity, AffinityAuto, AffinityOff))
	}
	if c.QueueJobs < 1 || c.QueueJobs > 1<<20 {
		faults = append(faults, fault("queue_jobs", "%d; want 1 to %d", c.QueueJobs, 1<<20))
	}
	if c.LoadWorkers < 1 || c.LoadWorkers > 1024 {
		faults = append(faults, fault("load_workers", "%d; want 1 to 1024", c.LoadWorkers))
	}
	if c.StorePace < 1 || c.StorePace > 100 {
		faults = append(faults, fault("store_pace", "%d; want 1 to 100 percent", c.StorePace))
	}
	if c.BatchBytes < minBatchBytes || c.BatchBytes > 1<<30 {
		faults = append(faults, fault("batch_bytes", "%s; want %s to 1GiB", c.BatchBytes, Size(minBatchBytes)))
	}
	return faults
}

// DeviceKind returns the kind in a device's name: host or cuda.
func (c *WorkerConfig) DeviceKind() string {
	kind, _, _ := strings.Cut(c.Device, "-")
	return kind
}

// DeviceNumber returns the number in a device's name.
//
// REQUIRES: Validate has found no fault.
func (c *WorkerConfig) DeviceNumber() int {
	_, digits, _ := strings.Cut(c.Device, "-")
	number, err := strconv.Atoi(digits)
	if err != nil {
		panic("BUG: device " + strconv.Quote(c.Device))
	}
	return number
}

func (c *Common) setDefaults() {
	if c.LogLevel == "" {
		c.LogLevel = "info"
	}
	if c.LogFormat == "" {
		c.LogFormat = FormatAuto
	}
	if c.Linger == 0 {
		c.Linger = 15 * time.Minute
	}
}

func (c *Common) faults() []error {
	var faults []error
	if _, err := c.Level(); err != nil {
		faults = append(faults, fault("log_level", "%q; want debug, info, warn or error", c.LogLevel))
	}
	if !slices.Contains([]string{FormatAuto, FormatText, FormatJSON, FormatJournal}, c.LogFormat) {
		faults = append(faults, fault("log_format", "%q; want auto, text, json or journal", c.LogFormat))
	}
	if c.Linger < 0 || c.Linger > maxLinger {
		faults = append(faults, fault("linger", "%s; want 1ns to %s", c.Linger, maxLinger))
	}
	if c.RuntimeDir != "" && !strings.HasPrefix(c.RuntimeDir, "/") {
		faults = append(faults, fault("runtime_dir", "%q is no absolute path", c.RuntimeDir))
	}
	return faults
}

// faults checks the address.
func (c *HTTP) faults() []error {
	if c.HTTPListen == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(c.HTTPListen)
	if err != nil {
		return []error{fault("http_listen", "%q; want an address and a port, 127.0.0.1:9790", c.HTTPListen)}
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return []error{fault("http_listen", "%q: port %q; want a number up to 65535", c.HTTPListen, port)}
	}
	ip := net.ParseIP(host)
	if host != "localhost" && (ip == nil || !ip.IsLoopback()) && !c.HTTPAllowRemote {
		return []error{fault("http_listen", "%q can be reached from other machines, and asks for no password; use 127.0.0.1, or say http_allow_remote", c.HTTPListen)}
	}
	return nil
}

// Log formats.
const (
	FormatAuto    = "auto"
	FormatText    = "text"
	FormatJSON    = "json"
	FormatJournal = "journal"
)

// Level returns the log level.
func (c *Common) Level() (slog.Level, error) { return ParseLevel(c.LogLevel) }

// ParseLevel reads a log level.
func ParseLevel(text string) (slog.Level, error) {
	switch text {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn", "warning":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("%w: log level %q; want debug, info, warn or error", ErrValue, text)
}

func fault(key, format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", key, ErrValue, fmt.Sprintf(format, args...))
}
