package mooncakec

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/cluster"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/native"
)

// Limits are how long things may take. What is 0 has a default.
type Limits struct {
	// Start is from the loading of the library to its readiness. Default 60s. After
	// it Health says what is waited for; nothing else can be done.
	Start time.Duration
	// Question is for existence and removal, Transfer for puts and gets. Default 60s
	// and 2m. With a call that takes longer the engine is down until it returns.
	Question, Transfer time.Duration
	// Failure is how long a transfer may take to fail and count as ended. Mooncake
	// gives one up after a minute and does not end it. Default 1s: refused connections
	// are within.
	Failure time.Duration
	// Watch is how often the client is asked whether it is set up. Default 2s.
	Watch time.Duration
	// Close is how long Run waits, each, for calls under way and for the client's end
	// when it is to end. Default 3s.
	Close time.Duration
	// FirstPause and LongestPause are between two clients. Default 100ms and 10s.
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
		{&l.Watch, 2 * time.Second},
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
	// Library is the absolute path of libmooncake_store.so.
	Library string
	// Cluster says how the cluster is reached. The library knows no tenants.
	Cluster cluster.Config
	// Memory is what calls are about.
	//
	// REQUIRES: it is mapped, no memory of Go's, and stays so until Run has ended; when
	// Run ends with ErrLeft, until the process does.
	Memory []byte
	// Hold, if not nil, is told the ranges of a put or a get that the library has not
	// returned from in its limit, before the call is answered. They are to be kept out
	// of use until release is called, which may be never.
	Hold   func(ranges []mooncake.Range) (release func())
	Limits Limits
	// NoProbe leaves out the object that is put, got and compared for each client.
	NoProbe bool
	Log     *slog.Logger
}

// ErrLeft: Run has ended, and the library may touch the memory yet. It ends with
// the process.
var ErrLeft = errors.New("the Mooncake library has not returned")

// ErrLibrary: the library can't be used.
var ErrLibrary = errors.New("the Mooncake library can't be used")

// check reports what is wrong for good.
func (c *Config) check() error {
	if !filepath.IsAbs(c.Library) {
		return fmt.Errorf("%w: %q is no absolute path", ErrLibrary, c.Library)
	}
	if t := c.Cluster.TenantID; t != "" && t != cluster.DefaultTenant {
		return fmt.Errorf("%w: it knows no tenants, and the cluster's configuration names %q; use the side process (store_python)", ErrLibrary, t)
	}
	return nil
}

// settings are what a client is set up with.
type settings struct {
	localHostname, metadataServer, protocol, deviceName, master string
	segmentBytes, bufferBytes                                   uint64
}

func (c *Config) settings() (*settings, error) {
	host, err := c.Cluster.FindLocalHostname()
	if err != nil {
		return nil, err
	}
	return &settings{
		localHostname: host, metadataServer: c.Cluster.MetadataServer, protocol: c.Cluster.Protocol, deviceName: c.Cluster.DeviceName,
		master: c.Cluster.MasterServerAddress, segmentBytes: c.Cluster.GlobalSegmentBytes,
		// Every transfer is from or to registered memory: none goes through a buffer of
		// Mooncake's.
		bufferBytes: 0,
	}, nil
}

// setEnvironment sets the client's variables where the environment of this process does not.
func setEnvironment() error {
	for _, v := range native.Environment() {
		if _, given := os.LookupEnv(v.Name); given {
			continue
		}
		if err := os.Setenv(v.Name, v.Value); err != nil {
			return fmt.Errorf("environment: %w", err)
		}
	}
	return nil
}
