package mooncakec

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// library is a loaded library.
type library interface {
	// create returns a client that is not set up.
	create() (client, error)
}

// client is one of a library's clients. Calls block for as long as the library
// does. They are safe for concurrent use once it is set up, but for destroy: that is
// the last call, made when no other is under way.
type client interface {
	setup(s *settings) mooncake.Code
	// register makes memory known to the network adapters. Objects are in such memory
	// only: others are refused.
	register(memory []byte) mooncake.Code
	exist(keys []string) ([]mooncake.Answer, error)
	put(memory []byte, how *mooncake.Replication, objects []mooncake.Object) ([]mooncake.Answer, error)
	get(memory []byte, objects []mooncake.Object) ([]mooncake.Answer, error)
	// remove spares what has a lease, unless it is by force.
	remove(keys []string, force bool) ([]mooncake.Answer, error)
	removeRegex(expression string) (int, error)
	// closed tells whether the client says that it is not set up any more.
	closed() bool
	// hostname is the name of the memory that is lent, "" if it can't be asked for.
	hostname() string
	// learnPins finds out how the library is told of pins, and returns that in a word.
	learnPins() string
	// destroy ends the client and all that it does.
	destroy()
}

// connection is a client that is set up, with the memory registered.
type connection struct {
	client client
	memory []byte
	probe  []byte // registered beside it for the probe, nil if there was none
	health mooncake.Health
}

var errSetup = errors.New("no connection to the Mooncake cluster")

// stageCount is how often open calls stage, at most.
const stageCount = 6

// open loads the library and sets up a client. stage is called with what comes
// next, since any of it may hang.
func open(cfg *Config, load func(path string) (library, error), stage func(string)) (*connection, error) {
	s, err := cfg.settings()
	if err != nil {
		return nil, err
	}
	stage("load")
	if err := setEnvironment(); err != nil {
		return nil, err
	}
	lib, err := load(cfg.Library)
	if err != nil {
		return nil, err
	}
	stage("create")
	made, err := lib.create()
	if err != nil {
		return nil, err
	}
	c := &connection{client: made, memory: cfg.Memory}
	if err := c.begin(cfg, s, stage); err != nil {
		stage("destroy")
		c.close()
		return nil, err
	}
	return c, nil
}

// begin sets the client up, registers the memory, and proves that bytes come back.
func (c *connection) begin(cfg *Config, s *settings, stage func(string)) error {
	fault := func(op string, code mooncake.Code, advice string) error {
		return fmt.Errorf("%w: %w; %s", errSetup, &mooncake.Error{Op: op, Code: code}, advice)
	}
	stage("setup")
	if code := c.client.setup(s); code != 0 {
		return fault("setup", code, fmt.Sprintf("do the master (%s) and the metadata server (%s) run, and can they be reached by %s?", s.master, s.metadataServer, s.protocol))
	}
	stage("register")
	if code := c.client.register(c.memory); code != 0 {
		return fault("register", code, "with RDMA the memory is locked: is the limit of locked memory (ulimit -l) large enough?")
	}
	stage("probe")
	c.health = mooncake.Health{Ready: true, Segment: c.client.hostname(), Versions: map[string]string{"library": cfg.Library, "pins": c.client.learnPins()}}
	if cfg.NoProbe {
		return nil
	}
	if err := c.prove(); err != nil {
		return fmt.Errorf("%w: probe: %w; does the library (%s) have the version of the cluster's master? A mismatch passes the setup and fails here", errSetup, err, cfg.Library)
	}
	return nil
}

// prove puts an object, gets it and compares: versions that do not fit pass the
// setup. A cluster without room is no fault.
func (c *connection) prove() (err error) {
	half := os.Getpagesize()
	c.probe, err = unix.Mmap(-1, 0, 2*half, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	if code := c.client.register(c.probe); code != 0 {
		return &mooncake.Error{Op: "register", Code: code}
	}
	var name [16]byte
	rand.Read(name[:])
	rand.Read(c.probe[:half])
	key := "mooncake-sidecar@probe@" + hex.EncodeToString(name[:])
	put := []mooncake.Object{{Key: key, Range: mooncake.Range{Bytes: uint64(half)}}}
	got := []mooncake.Object{{Key: key, Range: mooncake.Range{Offset: uint64(half), Bytes: uint64(half)}}}
	answers, err := c.client.put(c.probe, &mooncake.Replication{}, put)
	if err != nil {
		return fmt.Errorf("put: %w", err)
	}
	switch code := answers[0].Code(); code {
	case 0:
	case mooncake.CodeNoSpace:
		return nil
	default:
		return &mooncake.Error{Op: "put", Code: code}
	}
	// It is ours alone, so its lease is, too.
	defer func() {
		if _, removing := c.client.remove([]string{key}, true); err == nil && removing != nil {
			err = fmt.Errorf("remove: %w", removing)
		}
	}()
	answers, err = c.client.get(c.probe, got)
	switch {
	case err != nil:
		return fmt.Errorf("get: %w", err)
	case answers[0].Code() != 0:
		return &mooncake.Error{Op: "get", Code: answers[0].Code()}
	case answers[0] != mooncake.Answer(half) || !bytes.Equal(c.probe[:half], c.probe[half:]):
		return errors.New("what was got is not what was put")
	}
	return nil
}

// close destroys the client.
//
// REQUIRES: no call is under way.
func (c *connection) close() {
	c.client.destroy()
	if c.probe != nil {
		_ = unix.Munmap(c.probe) // it was mapped whole
	}
}
