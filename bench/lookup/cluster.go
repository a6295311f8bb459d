package lookup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/zmqx"
)

// What our daemon knows of a cluster's chunks when it is asked.
const (
	// known: it was told a moment ago.
	known = "known"
	// asked: it has to ask the cluster.
	asked = "asked"
)

// clusterShares are the most of the in-tree server's time that a lookup over one
// cluster may take.
var clusterShares = map[string]float64{known: 0.05, asked: 0.5}

// knowledge is how a daemon is brought to know, or not to: by the lease that it is
// told, of which it trusts an answer a part, and by a pause between questions.
var knowledge = []knowing{
	{known, "1h", 0, 1 << 30},
	{asked, "1s", 1200 * time.Millisecond, 10},
}

type knowing struct {
	what, lease string
	pause       time.Duration
	// most rounds are made: each has a pause.
	most int
}

// RunCluster measures lookups of chunks that are in a Mooncake cluster and not in
// the node's memory. vLLM's client asks our daemon and vLLM's own server over one
// master, by turns; then the shim's client asks ours, and one in Go.
func RunCluster(ctx context.Context, o *Options) (_ *Result, err error) {
	if o.Asked < 1 || o.Rounds < 1 || o.Python == "" {
		return nil, fmt.Errorf("%d chunks, %d rounds, Python %q: a cluster can't be asked", o.Asked, o.Rounds, o.Python)
	}
	dir, err := os.MkdirTemp("", "lookup-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	questions, err := ask(dir, o.Asked)
	if err != nil {
		return nil, err
	}
	o.Progress("starting mooncake_master and the in-tree server, and storing its keys")
	server, base, err := inTree(ctx, o.Python, o.Source, dir, questions[0].File, shardBytes, sizes)
	if err != nil {
		return nil, err
	}
	defer server.stop()
	at, err := reachOf(ctx, server)
	if err != nil {
		return nil, err
	}
	r := &Result{Asked: o.Asked}
	shares := map[string]float64{}
	for i := range knowledge {
		k := &knowledge[i]
		o.Progress("asking for what ours has " + k.what)
		sub := filepath.Join(dir, k.what)
		if err := os.Mkdir(sub, 0o700); err != nil {
			return nil, err
		}
		of := make([]question, len(questions))
		for i, q := range questions {
			q.Name += ", " + k.what
			if q.Want > 0 {
				shares[q.Name] = clusterShares[k.what]
			}
			of[i] = q
		}
		if err := r.overCluster(ctx, o, k, sub, base, at, of); err != nil {
			return nil, err
		}
	}
	r.judge(nil, shares)
	return r, nil
}

// overCluster asks daemons of its own, in a folder of theirs, and the in-tree server.
func (r *Result) overCluster(ctx context.Context, o *Options, k *knowing, dir, base string, at reach, questions []question) error {
	served, err := serveCluster(ctx, o, dir, at, k.lease)
	if err != nil {
		return err
	}
	defer served.close()
	s := script{
		Bases: map[string]string{ours: dir, theirs: base}, Questions: questions, Warm: 2, Rounds: min(o.Rounds, k.most), HashBytes: hashBytes,
		PauseSeconds: k.pause.Seconds(), Prime: k.pause == 0, Apart: true, Strides: served.strides, After: served.forget,
	}
	taken, err := askFromPython(ctx, o.Python, o.Source, dir, &s, served.channels)
	if err != nil {
		return err
	}
	rounds := s.Rounds
	if k.pause == 0 {
		rounds = max(rounds, 200)
	}
	fromGo, err := askInTurns(dir, questions, k.pause, s.Warm, rounds)
	if err != nil {
		return err
	}
	for i := range questions {
		q := &questions[i]
		for _, pair := range [][2]string{{"shim", ours}, {"vllm", ours}, {"vllm", theirs}} {
			r.Rows = append(r.Rows, rowOf(q, pair[0], pair[1], taken[pair[0]+"/"+pair[1]][q.Name]))
		}
		r.Rows = append(r.Rows, rowOf(q, "go", ours, fromGo[q.Name]))
	}
	return nil
}

// askInTurns asks every question once a turn, on the lookup sockets in a folder. The
// first turns do not count.
func askInTurns(dir string, questions []question, pause time.Duration, warm, rounds int) (_ map[string][]int64, err error) {
	transport, err := zmqx.New()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, transport.Close()) }()
	askers := make([]*asker, len(questions))
	for i := range questions {
		if askers[i], err = newAsker(transport, socketPath(dir, questions[i].Port), &questions[i]); err != nil {
			return nil, err
		}
		defer func() { _ = askers[i].client.Close() }() // all is answered
	}
	taken := map[string][]int64{}
	runtime.GC()
	for turn := range warm + rounds {
		time.Sleep(pause)
		for i, a := range askers {
			took, err := a.ask()
			switch {
			case turn < warm: // it may not have been found out in time
			case err != nil:
				return nil, fmt.Errorf("%s: %w", questions[i].Name, err)
			default:
				taken[questions[i].Name] = append(taken[questions[i].Name], took.Nanoseconds())
			}
		}
	}
	return taken, nil
}

// reach is how the in-tree server's cluster is reached.
type reach struct {
	Config   string `json:"config"`
	KeySpace string `json:"key_space"`
}

// reachOf waits for the line that says so.
func reachOf(ctx context.Context, server *process) (r reach, err error) {
	err = server.until(ctx, func() bool {
		return json.Unmarshal(lastLine([]byte(tail(server.log))), &r) == nil && r.Config != "" && r.KeySpace != ""
	})
	return r, err
}

// spareStoreBytes is room beside the chunks; a daemon takes no store of less than 8 MiB.
const spareStoreBytes = 16 << 20

// serveCluster starts a daemon over the cluster for each size, whose engine's lookup
// socket is in dir.
func serveCluster(ctx context.Context, o *Options, dir string, at reach, lease string) (_ *served, err error) {
	s := newServed()
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	env := []string{
		"MOONCAKE_SIDECAR_STORE=mooncake", "MOONCAKE_SIDECAR_STORE_PYTHON=" + o.Python, "MOONCAKE_SIDECAR_MOONCAKE_LEASE=" + lease,
		"MOONCAKE_CONFIG_PATH=" + at.Config, "MC_LOG_LEVEL=ERROR",
	}
	for _, tp := range sizes {
		// One for each: the keys do not tell the sizes apart, and a daemon refuses both.
		runtime := filepath.Join(dir, fmt.Sprintf("tp%d", tp))
		if err := os.Mkdir(runtime, 0o700); err != nil {
			return nil, err
		}
		// A lookup promises a quarter of the node's memory at most of a cluster.
		storeBytes := spareStoreBytes + 5*o.Asked*tp*shardBytes
		daemon, err := lookupd(ctx, o.Binaries, runtime, storeBytes, env, clusterReady)
		if err != nil {
			return nil, err
		}
		s.undo = append(s.undo, daemon.stop)
		if err := s.register(ctx, runtime, socketPath(dir, tp), tp, inTreeSpec(at.KeySpace, tp)); err != nil {
			return nil, err
		}
		// The shim's hits are leased, and what is leased is brought into memory.
		s.forget[tp] = []string{o.Python, filepath.Join(o.Source, "bench", "compare", "hosts", "forget.py"), filepath.Join(o.Binaries, "mooncake-lookupd"), runtime}
	}
	return s, nil
}

// clusterReady is what the daemon logs when its cluster can be used.
const clusterReady = "the Mooncake cluster is in service"

// inTreeSpec is specOf with the in-tree connector's keys.
func inTreeSpec(keySpace string, tp int) *kv.NamespaceSpec {
	spec := specOf(tp)
	spec.Model, spec.KeySpace = kv.ModelBaseName(keySpace), keySpace
	return spec
}
