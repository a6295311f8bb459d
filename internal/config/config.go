package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"regexp"
	"strings"
	"time"
)

// Common is what all daemons of a node share.
type Common struct {
	// RuntimeDir holds the sockets; see docs/protocol.md. Empty: see
	// DefaultRuntimeDir.
	RuntimeDir string `yaml:"runtime_dir"`
	// LogLevel is debug, info, warn or error. Default info.
	LogLevel string `yaml:"log_level"`
	// LogFormat is text or json. Default text.
	LogFormat string `yaml:"log_format"`
	// Linger is how long an autostarted daemon stays after its last session.
	// Default 15m.
	Linger time.Duration `yaml:"linger"`
	// Autostarted: a shim started the daemon. It ends by itself (Linger), and the
	// shim may kill it. Set by flag or environment only.
	Autostarted bool `yaml:"-"`
}

// LookupdConfig is the configuration of mooncake-lookupd.
type LookupdConfig struct {
	Common `yaml:"-"`
	// StoreBytes is the size of the shared-memory store. Default: a quarter of the
	// memory, at least 256 MiB.
	StoreBytes Size `yaml:"store_bytes"`
	// LeaseTTL is how long a lookup keeps the chunks of its hit from eviction
	// unless the engine releases them earlier. Default 30s.
	LeaseTTL time.Duration `yaml:"lease_ttl"`
}

// WorkerConfig is the configuration of mooncake-worker.
type WorkerConfig struct {
	Common `yaml:"-"`
	// Device names the device and its rank on the node: host-0, cuda-0. It is
	// part of the socket's name. Default host-0.
	Device string `yaml:"device"`
	// Verify compares the checksum of every loaded shard, whatever the engine
	// asks for. Default false: the engine decides.
	Verify bool `yaml:"verify"`
	// QueueJobs bounds the jobs that wait, loads and stores each, by engine rank; a job that finds
	// the queue full is dropped. Default 1024.
	QueueJobs int `yaml:"queue_jobs"`
	// LoadWorkers is how many loads run at a time, by engine rank. Default 2.
	LoadWorkers int `yaml:"load_workers"`
	// BatchBytes bounds what is copied between two looks at the cancel word.
	// Default 8MiB.
	BatchBytes Size `yaml:"batch_bytes"`
}

const (
	minBatchBytes = 64 << 10
	maxLinger     = 30 * 24 * time.Hour
)

// SetDefaults fills in what is unset. root is the root file system, from which
// the memory size is read.
func (c *LookupdConfig) SetDefaults(root fs.FS) {
	c.Common.setDefaults()
	if c.StoreBytes == 0 {
		c.StoreBytes = DefaultStoreBytes(root)
	}
	if c.LeaseTTL == 0 {
		c.LeaseTTL = 30 * time.Second
	}
}

// Validate reports everything that is wrong, one line each.
//
// REQUIRES: SetDefaults.
func (c *LookupdConfig) Validate() error {
	faults := c.Common.faults()
	if c.StoreBytes < MinStoreBytes {
		faults = append(faults, fault("store_bytes", "%s is less than the %s that a store needs", c.StoreBytes, Size(MinStoreBytes)))
	}
	if c.LeaseTTL < time.Second || c.LeaseTTL > time.Hour {
		faults = append(faults, fault("lease_ttl", "%s; want 1s to 1h", c.LeaseTTL))
	}
	return errors.Join(faults...)
}

// SetDefaults fills in what is unset.
func (c *WorkerConfig) SetDefaults() {
	c.Common.setDefaults()
	if c.Device == "" {
		c.Device = "host-0"
	}
	if c.QueueJobs == 0 {
		c.QueueJobs = 1024
	}
	if c.LoadWorkers == 0 {
		c.LoadWorkers = 2
	}
	if c.BatchBytes == 0 {
		c.BatchBytes = 8 << 20
	}
}

var deviceName = regexp.MustCompile(`^(host|cuda)-(0|[1-9][0-9]{0,3})$`)

// Validate reports everything that is wrong, one line each.
//
// REQUIRES: SetDefaults.
func (c *WorkerConfig) Validate() error {
	faults := c.Common.faults()
	if !deviceName.MatchString(c.Device) {
		faults = append(faults, fault("device", "%q; want a kind and a number, host-0 or cuda-0", c.Device))
	}
	if c.QueueJobs < 1 || c.QueueJobs > 1<<20 {
		faults = append(faults, fault("queue_jobs", "%d; want 1 to %d", c.QueueJobs, 1<<20))
	}
	if c.LoadWorkers < 1 || c.LoadWorkers > 64 {
		faults = append(faults, fault("load_workers", "%d; want 1 to 64", c.LoadWorkers))
	}
	if c.BatchBytes < minBatchBytes || c.BatchBytes > 1<<30 {
		faults = append(faults, fault("batch_bytes", "%s; want %s to 1GiB", c.BatchBytes, Size(minBatchBytes)))
	}
	return errors.Join(faults...)
}

// DeviceKind returns the kind in a device's name: host or cuda.
func (c *WorkerConfig) DeviceKind() string {
	kind, _, _ := strings.Cut(c.Device, "-")
	return kind
}

func (c *Common) setDefaults() {
	if c.LogLevel == "" {
		c.LogLevel = "info"
	}
	if c.LogFormat == "" {
		c.LogFormat = "text"
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
	if c.LogFormat != "text" && c.LogFormat != "json" {
		faults = append(faults, fault("log_format", "%q; want text or json", c.LogFormat))
	}
	if c.Linger < 0 || c.Linger > maxLinger {
		faults = append(faults, fault("linger", "%s; want 1ns to %s", c.Linger, maxLinger))
	}
	if c.RuntimeDir != "" && !strings.HasPrefix(c.RuntimeDir, "/") {
		faults = append(faults, fault("runtime_dir", "%q is no absolute path", c.RuntimeDir))
	}
	return faults
}

// Level returns the log level.
func (c *Common) Level() (slog.Level, error) {
	switch c.LogLevel {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn", "warning":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("%w: log level %q", ErrValue, c.LogLevel)
}

func fault(key, format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", key, ErrValue, fmt.Sprintf(format, args...))
}
