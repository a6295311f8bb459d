package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/evict"
	"github.com/mooncake-sidecar/sidecar/internal/proc"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/internal/unixmsg"
	"github.com/mooncake-sidecar/sidecar/internal/version"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

var _ embedded.Collapser = (*shm.Segment)(nil)

// recoveryTimeout bounds the question to the workers. One that is stopped costs
// it at every start of lookupd.
const recoveryTimeout = time.Second

// openStore adopts the segment that a worker of the runtime directory or the
// service manager has kept, or makes a new one of that size. The service manager
// has it from then on.
func openStore(ctx context.Context, dir string, bytes uint64, opts *embedded.Options, sup *supervision) (*embedded.Master, *shm.Segment, error) {
	sup.Extend(patienceForMemory)
	known := sup.fromManager(opts.Log)
	names := make([]string, 0, len(known))
	for i := range known {
		names = append(names, known[i].name)
	}
	master, segment, err := adoptOrCreate(byVotes(append(known, keptSegments(ctx, dir, opts.Log)...)), bytes, opts)
	if err != nil {
		return nil, nil, err
	}
	sup.keep(master.SegmentInfo().UUID, segment.FD(), names)
	return master, segment, nil
}

// adoptOrCreate takes the first of the kept segments that can be used. All are
// closed but that one.
func adoptOrCreate(found []kept, bytes uint64, opts *embedded.Options) (*embedded.Master, *shm.Segment, error) {
	defer func() {
		for i := range found {
			found[i].close()
		}
	}()
	for i := range found {
		master, segment, err := adopt(&found[i], opts)
		if err != nil {
			opts.Log.Warn("a kept segment can't be used", "segment", found[i].info.UUID, "error", err)
			continue
		}
		return master, segment, nil
	}
	return newStore(bytes, opts)
}

// storeOptions are the settings of the store for a policy's name.
func storeOptions(policy string, nodes []embedded.NodeRoom, log *slog.Logger) *embedded.Options {
	return &embedded.Options{Alive: proc.Alive, Now: proc.BootClock, Log: log, NewPolicy: newPolicy(policy), Nodes: nodes}
}

// newPolicy returns what makes the named eviction policy.
//
// REQUIRES: the name is known; the configuration was checked.
func newPolicy(name string) func(records int) evict.Policy {
	return func(records int) evict.Policy {
		p, err := evict.New(name, records)
		if err != nil {
			panic("BUG: " + err.Error())
		}
		return p
	}
}

func adopt(k *kept, opts *embedded.Options) (*embedded.Master, *shm.Segment, error) {
	segment, err := shm.OpenSegment(k.take(), k.info.Bytes)
	if err != nil {
		return nil, nil, err
	}
	master, found, err := embedded.Adopt(segment, *opts)
	if err != nil {
		return nil, nil, errors.Join(err, segment.Close())
	}
	opts.Log.Info("store recovered", "segment", k.info.UUID, "bytes", config.Size(k.info.Bytes).String(), "chunks", found.Chunks,
		"dropped", found.Dropped, "clients_awaited", found.Undeclared)
	return master, segment, nil
}

func newStore(bytes uint64, opts *embedded.Options) (*embedded.Master, *shm.Segment, error) {
	var uuid [16]byte
	_, _ = rand.Read(uuid[:]) // it never fails
	layout, err := embedded.NewLayout(uuid, bytes)
	if err != nil {
		return nil, nil, err
	}
	if err := config.CheckRoom(os.DirFS("/"), layout.FileBytes); err != nil {
		return nil, nil, err
	}
	segment, err := shm.NewSegment("mooncake-store", layout.FileBytes)
	if err != nil {
		return nil, nil, err
	}
	master, err := embedded.Create(segment, layout, *opts)
	if err != nil {
		return nil, nil, errors.Join(err, segment.Close())
	}
	opts.Log.Info("store created", "segment", fmt.Sprintf("%x", uuid), "bytes", config.Size(bytes).String())
	return master, segment, nil
}

// kept is a segment that a worker or the service manager has kept alive.
type kept struct {
	info  connector.SegmentInfo
	fd    int    // -1 once taken
	votes int    // of those that have it
	name  string // the service manager's, if it is from there
}

func (k *kept) take() int {
	fd := k.fd
	k.fd = -1
	return fd
}

func (k *kept) close() {
	if fd := k.take(); fd >= 0 {
		_ = syscall.Close(fd) // Linux frees the number whatever it says
	}
}

// keptSegments asks every worker of the runtime directory.
func keptSegments(ctx context.Context, dir string, log *slog.Logger) []kept {
	paths, err := filepath.Glob(filepath.Join(dir, config.WorkerSocketPattern))
	if err != nil {
		log.Warn("no workers are asked for a segment", "error", err) // a directory with pattern characters
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, recoveryTimeout)
	defer cancel()
	var (
		asked sync.WaitGroup
		mu    sync.Mutex
		found []kept
	)
	for _, path := range paths {
		asked.Go(func() {
			segments, err := askForSegments(ctx, path)
			if err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
				log.Warn("a worker was asked for the segment it keeps", "socket", path, "error", err)
			}
			mu.Lock()
			defer mu.Unlock()
			found = append(found, segments...)
		})
	}
	asked.Wait()
	return found
}

// byVotes joins the equal ones. The segment that most have comes first: the last
// lookupd's.
func byVotes(found []kept) []kept {
	var out []kept
	for _, k := range found {
		i := slices.IndexFunc(out, func(o kept) bool { return o.info == k.info })
		if i < 0 {
			k.votes = 1
			out = append(out, k)
			continue
		}
		out[i].votes++
		k.close()
	}
	slices.SortStableFunc(out, func(a, b kept) int { return cmp.Compare(b.votes, a.votes) })
	return out
}

// askForSegments has one worker's recovery session.
func askForSegments(ctx context.Context, path string) ([]kept, error) {
	conn, err := unixmsg.Dial(ctx, path, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // the session is over
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	frames := connector.NewFrameReader(conn)
	if _, err := greet(conn, frames, connector.RoleRecovery); err != nil {
		return nil, err
	}
	segments, err := connector.Receive[connector.Segments](frames)
	if err != nil {
		return nil, err
	}
	fds, err := conn.TakeFDs(segments.FDs)
	if err != nil {
		return nil, err
	}
	out := make([]kept, 0, len(fds))
	for i, fd := range fds {
		k := kept{fd: fd}
		if i < len(segments.Segments) {
			k.info = segments.Segments[i]
			out = append(out, k)
		} else {
			k.close()
		}
	}
	return out, nil
}

// greet opens a session of a role that registers nothing.
func greet(conn *unixmsg.Conn, frames *connector.FrameReader, role string) (*connector.Welcome, error) {
	if err := say(conn, &connector.Hello{
		Type: connector.TypeHello, Protocol: connector.ProtocolVersion, Role: role, PID: os.Getpid(), Version: version.Version,
	}); err != nil {
		return nil, err
	}
	return connector.Receive[connector.Welcome](frames)
}

func say(conn *unixmsg.Conn, msg any) error {
	frame, err := connector.AppendFrame(nil, msg)
	if err != nil {
		return err
	}
	_, err = conn.Write(frame)
	return err
}
