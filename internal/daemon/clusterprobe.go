package daemon

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/doctor"
	"github.com/mooncake-sidecar/sidecar/internal/mooncakec"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/internal/zmqx"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/cluster"
)

const (
	// reachTimeout bounds the try of a connection, clusterTimeout that of the whole way
	// to the cluster.
	reachTimeout   = 3 * time.Second
	clusterTimeout = 20 * time.Second
	// probeMemory is registered for the try.
	probeMemory = 1 << 20
)

// ProbeCluster tries the way to a Mooncake cluster, as lookupd would go it, but
// lends nothing.
func ProbeCluster(ctx context.Context, m *config.Mooncake) doctor.Cluster {
	ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
	defer cancel()
	file := m.ConfigPath
	if file == "" {
		file = os.Getenv(cluster.EnvPath)
	}
	reached, notes, err := clusterConfig(m)
	found := doctor.Cluster{
		File: file, ConfigErr: err, Notes: notes, Master: reached.MasterServerAddress, Metadata: reached.MetadataServer, Protocol: reached.Protocol,
		Python: m.StorePython, Library: m.Library, LentBytes: reached.GlobalSegmentBytes,
	}
	if err != nil {
		return found
	}
	if !strings.Contains(reached.MasterServerAddress, "://") {
		found.MasterErr = dial(ctx, reached.MasterServerAddress)
	}
	if strings.HasPrefix(reached.MetadataServer, "http") {
		found.MetadataErr = getPage(ctx, reached.MetadataServer)
	}
	if found.MasterErr != nil || found.MetadataErr != nil {
		return found // Mooncake's client would find that, too, and take longer
	}
	events := listen(ctx, m.Events)
	health := tryObject(ctx, m, &reached)
	found.Ready, found.Reason, found.Note, found.Versions = health.Ready, health.Reason, health.Note, health.Versions
	found.Events = m.Events
	found.Linked, found.Told, found.Named, found.EventsErr = events.end(ctx, health.Ready)
	return found
}

// eventProbe hears whether a master tells of its objects.
type eventProbe struct {
	following io.Closer
	err       error
	// changed has a token when something was.
	changed chan struct{}

	mu                  sync.Mutex
	linked, told, named bool
}

// listen follows an endpoint, "" for none, and waits until there is a publisher.
func listen(ctx context.Context, endpoint string) *eventProbe {
	l := &eventProbe{changed: make(chan struct{}, 1)}
	if endpoint == "" {
		return l
	}
	transport, err := zmqx.New()
	if err != nil {
		l.err = err
		return l
	}
	following, err := transport.Subscribe(endpoint, "", l.hear, func(up bool) { l.note(func() { l.linked = l.linked || up }) })
	if err != nil {
		l.err = errors.Join(err, transport.Close())
		return l
	}
	l.following = closers{following, transport}
	l.await(ctx, func() bool { return l.linked })
	return l
}

func (l *eventProbe) note(do func()) {
	l.mu.Lock()
	do()
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default: // there is one
	}
}

// hear looks for the name of an object.
func (l *eventProbe) hear(frames [][]byte) {
	m, err := kvevents.ParseLive(frames)
	if err != nil {
		return
	}
	batch, _, err := kvevents.NewDecoder().Decode(m.Payload)
	if err != nil {
		return
	}
	l.note(func() {
		for _, event := range batch.Events {
			if stored, ok := event.(*kvevents.BlockStored); ok {
				l.told, l.named = true, l.named || len(stored.ObjectKey) > 0
			}
		}
	})
}

// await waits until something is so, as long as a connection may take.
func (l *eventProbe) await(ctx context.Context, so func() bool) {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	for {
		l.mu.Lock()
		over := so()
		l.mu.Unlock()
		if over {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-l.changed:
		}
	}
}

// end says what was heard. stored: there was something to tell.
func (l *eventProbe) end(ctx context.Context, stored bool) (linked, told, named bool, err error) {
	if l.following == nil {
		return false, false, false, l.err
	}
	if stored {
		l.await(ctx, func() bool { return l.named || !l.linked })
	}
	err = l.following.Close()
	return l.linked, l.told, l.named, err
}

// closers closes one after the other.
type closers []io.Closer

// Close implements io.Closer.
func (c closers) Close() (err error) {
	for _, closer := range c {
		err = errors.Join(err, closer.Close())
	}
	return err
}

func dial(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{Timeout: reachTimeout}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// getPage tells whether a server answers; what it answers is Mooncake's client's
// affair.
func getPage(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"?key=mooncake-sidecar", http.NoBody)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// tryObject has Mooncake's client put, get and compare an object.
func tryObject(ctx context.Context, m *config.Mooncake, to *cluster.Config) mooncake.Health {
	memory, err := shm.NewSegment("mooncake-probe", probeMemory)
	if err != nil {
		return mooncake.Health{Reason: err.Error()}
	}
	lender := *to
	lender.Mode, lender.GlobalSegmentBytes = cluster.ModeStandalone, 0
	engine, err := newWay(m, &lender, memory, nil, false, slog.New(slog.DiscardHandler))
	if err != nil {
		_ = memory.Close() // nothing was kept in it
		return mooncake.Health{Reason: err.Error()}
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	begun := engine.Changed()
	go func() { ended <- engine.Run(running) }()
	select {
	case <-begun:
	case <-ctx.Done():
	}
	health := engine.Health()
	stop()
	if !errors.Is(<-ended, mooncakec.ErrLeft) {
		_ = memory.Close() // nothing was kept in it
	}
	return health
}
