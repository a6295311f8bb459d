package lookup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
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
var knowledge = []struct {
	what, lease  string
	pauseSeconds float64
	// most rounds are made: each has a pause.
	most int
}{
	{known, "1h", 0, 1 << 30},
	{asked, "1s", 1.2, 30},
}

// RunCluster measures lookups of chunks that are in a Mooncake cluster and not in
// the node's memory: vLLM's client asks our daemon and vLLM's own server over one
// master, by turns.
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
	server, base, err := inTree(ctx, o.Python, o.Source, dir, questions[0].File, sizes)
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
	for _, k := range knowledge {
		o.Progress("asking both by turns what ours has " + k.what)
		sub := filepath.Join(dir, k.what)
		if err := os.Mkdir(sub, 0o700); err != nil {
			return nil, err
		}
		stop, err := overCluster(ctx, o, sub, at, k.lease)
		if err != nil {
			return nil, err
		}
		s := &script{Bases: map[string]string{ours: sub, theirs: base}, Questions: questions, Warm: 2, Rounds: min(o.Rounds, k.most), HashBytes: hashBytes, PauseSeconds: k.pauseSeconds}
		taken, err := askFromPython(ctx, o.Python, o.Source, sub, s, nil)
		stop()
		if err != nil {
			return nil, err
		}
		for i := range questions {
			q := questions[i]
			for _, at := range []string{ours, theirs} {
				row := rowOf(&q, "vllm", at, taken["vllm/"+at][q.Name])
				row.Question += ", " + k.what
				if q.Want == o.Asked*blockTokens {
					shares[row.Question] = clusterShares[k.what]
				}
				r.Rows = append(r.Rows, row)
			}
		}
	}
	r.judge(nil, shares)
	return r, nil
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

// overCluster starts a daemon over the cluster for each size, whose engine's lookup
// socket is in dir. The caller stops them.
func overCluster(ctx context.Context, o *Options, dir string, at reach, lease string) (_ func(), err error) {
	var undo []func()
	stop := func() {
		for i := range undo {
			undo[len(undo)-1-i]()
		}
	}
	defer func() {
		if err != nil {
			stop()
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
		undo = append(undo, daemon.stop)
		e, err := register(ctx, runtime, socketPath(dir, tp), tp, inTreeSpec(at.KeySpace, tp))
		if err != nil {
			return nil, err
		}
		undo = append(undo, e.close)
	}
	return stop, nil
}

// clusterReady is what the daemon logs when its cluster can be used.
const clusterReady = "the Mooncake cluster is in service"

// inTreeSpec is specOf with the in-tree connector's keys.
func inTreeSpec(keySpace string, tp int) *kv.NamespaceSpec {
	spec := specOf(tp)
	spec.Model, spec.KeySpace = kv.ModelBaseName(keySpace), keySpace
	return spec
}
