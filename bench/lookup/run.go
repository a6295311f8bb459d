package lookup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/zmqx"
)

// The servers.
const (
	ours   = "ours"
	theirs = "intree"
)

// Options of a run.
type Options struct {
	// Binaries is the folder of mooncake-lookupd.
	Binaries string
	// Source is the repository, for the Python side.
	Source string
	// Python, if not empty, has vLLM and Mooncake: its client asks too, and its
	// server is asked by turns.
	Python string
	// Asked and Others are chunks.
	Asked, Others int
	// Scattered: the asked chunks were put one by one between the others, and not
	// in one piece.
	Scattered bool
	// Rounds is how often each question is asked of each server.
	Rounds int
	// Clients ask at once, 0 for no crowd.
	Clients int
	// Progress is told what goes on.
	Progress func(string)
}

// sizes are the tensor-parallel sizes that are measured.
var sizes = []int{1, 8}

// short is the chunks of a short question, which has no target: what it costs is
// the way there and back.
const short = 16

// limitsMicros are the targets.
var limitsMicros = map[string]float64{
	"present, TP1": 500, "present, TP8": 800, "first missing, TP1": 200, "first missing, TP8": 200,
}

// Run measures. It leaves no process and no file.
func Run(ctx context.Context, o *Options) (_ *Result, err error) {
	if o.Asked < 1 || o.Others < 0 || o.Rounds < 1 || o.Clients < 0 {
		return nil, fmt.Errorf("%d chunks asked, %d others, %d rounds, %d clients: can't be measured", o.Asked, o.Others, o.Rounds, o.Clients)
	}
	dir, err := os.MkdirTemp("", "lookup-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	questions, err := ask(dir, o.Asked, min(o.Asked, short))
	if err != nil {
		return nil, err
	}
	o.Progress(fmt.Sprintf("filling an index with %d chunks", o.Others+len(sizes)*o.Asked))
	served, err := serve(ctx, o, dir)
	if err != nil {
		return nil, err
	}
	defer served.close()

	r := &Result{Asked: o.Asked, Others: o.Others, Scattered: o.Scattered}
	if o.Python != "" {
		if err := r.withInTree(ctx, o, dir, questions, served); err != nil {
			return nil, err
		}
	}
	o.Progress("asking from Go")
	if err := r.fromGo(o, dir, questions, served); err != nil {
		return nil, err
	}
	r.judge(limitsMicros, sharesOf(limitsMicros))
	return r, nil
}

// ask writes the hashes down and returns the questions, of asked chunks and of those
// other numbers of them. A request is one token longer than its blocks: its last token
// is never looked up.
func ask(dir string, asked int, others ...int) ([]question, error) {
	var questions []question
	for _, kind := range []struct {
		name   string
		first  int
		stored bool
	}{{"present", 0, true}, {"first missing", 1 << 29, false}} {
		for _, count := range slices.Compact(append([]int{asked}, others...)) {
			blob := blobOf(kind.first, count)
			file := filepath.Join(dir, fmt.Sprintf("%s.%d.hashes", kind.name, count))
			if err := os.WriteFile(file, blob, 0o600); err != nil {
				return nil, err
			}
			for _, tp := range sizes {
				q := question{Name: fmt.Sprintf("%s, TP%d", kind.name, tp), Port: tp, Tokens: count*blockTokens + 1, File: file, blob: blob}
				if count != asked {
					q.Name = fmt.Sprintf("%d %s", count, q.Name)
				}
				if kind.stored {
					q.Want = count * blockTokens
				}
				questions = append(questions, q)
			}
		}
	}
	return questions, nil
}

// served are daemons of ours with engines.
type served struct {
	// channels are the engines' lookup channels by tensor-parallel size, and strides
	// how sparse lookups on them may be.
	channels map[int]*os.File
	strides  map[int]int
	// forget are commands by size that have a daemon forget what its lookups have
	// brought into memory; none where they bring nothing.
	forget map[int][]string
	undo   []func()
}

func newServed() *served {
	return &served{channels: map[int]*os.File{}, strides: map[int]int{}, forget: map[int][]string{}}
}

// register opens an engine's session.
func (s *served) register(ctx context.Context, dir, path string, tp int, spec *kv.NamespaceSpec) error {
	e, err := register(ctx, dir, path, tp, spec)
	if err != nil {
		return err
	}
	s.undo = append(s.undo, e.close)
	s.channels[tp], s.strides[tp] = e.channel, e.stride
	return nil
}

// close ends sessions and daemons.
func (s *served) close() {
	for i := range s.undo {
		s.undo[len(s.undo)-1-i]()
	}
}

// layoutBytes is what the daemon is told of a segment that it takes over, whose size
// stays.
const layoutBytes = 256 << 20

func serve(ctx context.Context, o *Options, dir string) (_ *served, err error) {
	s := newServed()
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	segment, layout, err := filled(o.Asked, o.Others, sizes, o.Scattered)
	if err != nil {
		return nil, err
	}
	s.undo = append(s.undo, func() { _ = segment.Close() }) // it was for this run
	debug.FreeOSMemory()                                    // what the filling took is not the daemon's
	keeper, err := keep(dir, segment, &layout)
	if err != nil {
		return nil, err
	}
	s.undo = append(s.undo, keeper.close)
	o.Progress("starting mooncake-lookupd, which takes the index over")
	daemon, err := lookupd(ctx, o.Binaries, dir, layoutBytes, nil, "store recovered")
	if err != nil {
		return nil, err
	}
	s.undo = append(s.undo, daemon.stop)
	for _, tp := range sizes {
		if err := s.register(ctx, dir, socketPath(dir, tp), tp, specOf(tp)); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// socketPath is where an in-tree client looks for the socket.
func socketPath(base string, port int) string {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost" // Python's gethostname has none either
	}
	return filepath.Join(base, fmt.Sprintf("lookup_rpc_port_%d_host_%s_dp_rank0", port, host))
}

// withInTree has vLLM's client ask both servers by turns, and our shim's ours.
func (r *Result) withInTree(ctx context.Context, o *Options, dir string, questions []question, served *served) error {
	o.Progress("starting the in-tree server and storing its keys")
	server, base, err := inTree(ctx, o.Python, o.Source, dir, questions[0].File, 1, sizes)
	if err != nil {
		return err
	}
	defer server.stop()
	o.Progress("asking both by turns with vLLM's client, ours with the shim's too")
	taken, err := askFromPython(ctx, o.Python, o.Source, dir, &script{
		Bases: map[string]string{ours: dir, theirs: base}, Questions: questions, Warm: 3, Rounds: o.Rounds, HashBytes: hashBytes, Strides: served.strides,
	}, served.channels)
	if err != nil {
		return err
	}
	for i := range questions {
		for _, pair := range [][2]string{{"shim", ours}, {"vllm", ours}, {"vllm", theirs}} {
			r.Rows = append(r.Rows, rowOf(&questions[i], pair[0], pair[1], taken[pair[0]+"/"+pair[1]][questions[i].Name]))
		}
	}
	return nil
}

// fromGo asks our server from this process: one client with the whole list on the
// lookup socket, one as the shim asks on a channel, then many on the socket.
func (r *Result) fromGo(o *Options, dir string, questions []question, served *served) (err error) {
	transport, err := zmqx.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, transport.Close()) }()
	for i := range questions {
		q := &questions[i]
		a, err := newAsker(transport, socketPath(dir, q.Port), q)
		if err != nil {
			return err
		}
		runtime.GC()
		taken, err := times(a.ask, 20, max(o.Rounds, 200))
		_ = a.client.Close() // all is answered
		if err != nil {
			return fmt.Errorf("%s: %w", q.Name, err)
		}
		r.Rows = append(r.Rows, rowOf(q, "go", ours, taken))
		p := newProber(served.channels[q.Port], served.strides[q.Port], q)
		runtime.GC()
		if taken, err = times(p.ask, 20, max(o.Rounds, 200)); err != nil {
			return fmt.Errorf("%s, on a channel: %w", q.Name, err)
		}
		r.Rows = append(r.Rows, rowOf(q, "go chain", ours, taken))
	}
	if o.Clients == 0 {
		return nil
	}
	for i := range questions {
		q := &questions[i]
		if limitsMicros[q.Name] == 0 {
			continue
		}
		taken, err := crowd(transport, socketPath(dir, q.Port), q, o.Clients, max(o.Rounds/4, 10))
		if err != nil {
			return fmt.Errorf("%s, %d clients: %w", q.Name, o.Clients, err)
		}
		r.Crowds = append(r.Crowds, crowdOf(q, o.Clients, taken))
	}
	return nil
}
