package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded/storepb"
	"google.golang.org/grpc"
)

// Conn is a session socket to mooncake-lookupd.
type Conn interface {
	io.ReadWriteCloser
	// TakeFDs hands over the n descriptors that came with the frame just read.
	TakeFDs(n int) ([]int, error)
	SetReadDeadline(t time.Time) error
}

// Mapping is a mapped segment file.
type Mapping interface {
	Bytes() []byte
	FD() int
	// Populate makes a range ready to be written, which is faster than its first
	// use. An error means that its pages come with that.
	Populate(offset, n uint64) error
	Close() error
}

// Edge is what the client needs of the operating system.
type Edge interface {
	// Dial opens a session socket to mooncake-lookupd.
	Dial(ctx context.Context) (Conn, error)
	// Map maps a segment file of exactly that many bytes and takes the
	// descriptor over, also when it fails.
	Map(fd int, bytes uint64) (Mapping, error)
	// CloseFD closes a descriptor that is not wanted.
	CloseFD(fd int)
}

// Config is what New needs.
type Config struct {
	Edge Edge
	// RPC is the connection to the store's gRPC service.
	RPC grpc.ClientConnInterface
	// ID names this process among the store's clients for its life.
	// REQUIRES: not 0.
	ID uint64
	// PID is the own process id.
	PID     int
	Version string
	Log     *slog.Logger
	// Background runs work that nobody waits for, at a low priority; nil: like any
	// other.
	Background func(work func())
}

// answerTimeout bounds the wait for the master's answers while a session opens.
const answerTimeout = 5 * time.Second

// Client is a store.Store over the embedded store's master.
type Client struct {
	cfg Config
	rpc storepb.StoreClient

	mu       sync.Mutex
	session  uint64             // number of the open session, 0 for none
	lost     chan struct{}      // closed to end the open session
	segments []*segment         // by Place.Segment; never shrinks
	current  int                // index of the master's segment, -1 before the first
	held     map[uint64]holding // by the client's own number
	offers   offers
	lastID   uint64
	changed  chan struct{} // closed and replaced when session changes
	closed   bool
	warming  sync.WaitGroup // goroutines of warm
	// nearNode is the number of the NUMA node next to which this process works plus
	// one, 0 for unknown.
	nearNode atomic.Uint32
}

// holding is a reference or a ticket that is open.
type holding struct {
	masterID uint64 // the master's number of it
	segment  int
	put      bool
}

var _ store.Store = (*Client)(nil)

// New returns a client; Run opens its sessions.
func New(cfg Config) *Client {
	if cfg.ID == 0 {
		panic("BUG: store client without an id")
	}
	if cfg.Background == nil {
		cfg.Background = func(work func()) { work() }
	}
	return &Client{
		cfg: cfg, rpc: storepb.NewStoreClient(cfg.RPC), current: -1,
		held: map[uint64]holding{}, offers: newOffers(), changed: make(chan struct{}),
	}
}

// SetNode says next to which NUMA node what is put comes from; -1: not known.
func (c *Client) SetNode(node int) { c.nearNode.Store(uint32(node + 1)) }

// Ready tells whether a session is open.
func (c *Client) Ready() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session != 0
}

// Changed returns a channel that is closed when Ready changes.
func (c *Client) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

// Run keeps a session open until ctx is done, and waits for it to end.
func (c *Client) Run(ctx context.Context) error {
	const shortest, longest = 20 * time.Millisecond, time.Second
	pause := shortest
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		opened, err := c.runSession(ctx)
		if opened {
			pause = shortest
		}
		if ctx.Err() == nil {
			c.cfg.Log.Debug("no store session", "error", err, "retry_in", pause)
		}
		timer.Reset(pause)
		pause = min(2*pause, longest)
	}
}

// runSession opens one session and returns when it has ended.
func (c *Client) runSession(ctx context.Context) (opened bool, err error) {
	dialCtx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	conn, err := c.cfg.Edge.Dial(dialCtx)
	if err != nil {
		return false, fmt.Errorf("store session: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		return false, fmt.Errorf("store session: %w", err)
	}
	frames := connector.NewFrameReader(conn)
	number, declared, offers, err := c.handshake(conn, frames)
	if err != nil {
		return false, fmt.Errorf("store session: %w", err)
	}
	lost := make(chan struct{})
	c.setSession(number, lost)
	c.cfg.Log.Info("store session open", "session", number)
	defer c.setSession(0, nil)
	unblock := make(chan struct{})
	go func() {
		defer close(unblock)
		<-lost
		_ = conn.Close()
	}()
	c.settle(dialCtx, number, declared)
	if err = conn.SetReadDeadline(time.Time{}); err == nil {
		err = c.converse(conn, frames, number, offers)
	}
	c.endSession(number)
	<-unblock
	c.cfg.Log.Warn("store session ended", "session", number, "error", err)
	return true, err
}

// converse reads an open session until it ends. Nothing is said on it by a master
// that makes no offers.
func (c *Client) converse(conn Conn, frames *connector.FrameReader, number uint64, offers bool) error {
	if offers {
		c.beginOffers()
		defer c.endOffers()
		stop := make(chan struct{})
		var telling sync.WaitGroup
		telling.Go(func() { c.keepTelling(conn, stop) })
		defer telling.Wait()
		defer close(stop)
		// A peer that does not read ends what is being told.
		defer func() { _ = conn.Close() }()
	}
	for {
		offer, err := receive[*connector.Offer](frames)
		if err != nil {
			return err
		}
		c.takeIn(number, offer)
	}
}

func (c *Client) handshake(conn Conn, frames *connector.FrameReader) (number uint64, declared *connector.Declare, offers bool, err error) {
	if err := send(conn, &connector.Hello{
		Type: connector.TypeHello, Protocol: connector.ProtocolVersion, Role: connector.RoleStoreClient,
		PID: c.cfg.PID, Epoch: c.cfg.ID, Version: c.cfg.Version,
	}); err != nil {
		return 0, nil, false, err
	}
	welcome, err := receive[*connector.Welcome](frames)
	if err != nil {
		return 0, nil, false, err
	}
	segments, err := receive[*connector.Segments](frames)
	if err != nil {
		return 0, nil, false, err
	}
	fds, err := conn.TakeFDs(segments.FDs)
	if err != nil {
		return 0, nil, false, err
	}
	if err := c.takeSegments(segments.Segments, fds); err != nil {
		return 0, nil, false, err
	}
	declared = c.declaration()
	if err := send(conn, declared); err != nil {
		return 0, nil, false, err
	}
	registered, err := receive[*connector.Registered](frames)
	if err != nil {
		return 0, nil, false, err
	}
	return welcome.Session, declared, registered.Offers, nil
}

func send(w io.Writer, msg any) error {
	frame, err := connector.AppendFrame(nil, msg)
	if err != nil {
		return err
	}
	_, err = w.Write(frame)
	return err
}

// receive reads one message, which must be a T.
func receive[T any](frames *connector.FrameReader) (T, error) {
	var none T
	frame, err := frames.Next()
	if err != nil {
		return none, err
	}
	msg, err := connector.Decode(frame)
	if err != nil {
		return none, err
	}
	if refusal, ok := msg.(*connector.Error); ok {
		return none, fmt.Errorf("refused: %s: %s", refusal.Code, refusal.Message)
	}
	want, ok := msg.(T)
	if !ok {
		return none, fmt.Errorf("got %T, want %T", msg, none)
	}
	return want, nil
}

func (c *Client) setSession(number uint64, lost chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session, c.lost = number, lost
	close(c.changed)
	c.changed = make(chan struct{})
}

// endSession makes the session's goroutine hang up, so that the next session
// declares what is held.
func (c *Client) endSession(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == number && c.lost != nil {
		close(c.lost)
		c.lost = nil
		c.session = 0
	}
}

// errNoSession is returned while no session is open.
var errNoSession = fmt.Errorf("%w: no session with mooncake-lookupd", store.ErrUnavailable)

func (c *Client) openSession() (*storepb.Session, error) {
	if session := c.sessionIfOpen(); session != nil {
		return session, nil
	}
	return nil, errNoSession
}

func (c *Client) sessionIfOpen() *storepb.Session {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == 0 {
		return nil
	}
	return &storepb.Session{Client: c.cfg.ID, Number: c.session}
}

// Close unmaps the segments.
//
// REQUIRES: Run has returned and no call is under way.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	for _, s := range c.segments {
		s.stopWarming()
	}
	c.mu.Unlock()
	c.warming.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, s := range c.segments {
		errs = append(errs, s.close())
	}
	return errors.Join(errs...)
}
