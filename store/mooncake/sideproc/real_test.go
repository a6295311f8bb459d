package sideproc_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/cluster"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/sideproc"
)

const lent = 64 << 20

// newMemory maps a memory file for the length of the test.
func newMemory(t testing.TB, bytes uint64) *shm.Segment {
	t.Helper()
	memory, err := shm.NewSegment("mooncake-test", bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = memory.Close() })
	return memory
}

// quiet logs to the test what is worth it.
func quiet(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// run runs an engine for the length of the test.
func run(t testing.TB, cfg sideproc.Config) *sideproc.Engine {
	t.Helper()
	if cfg.Environ == nil {
		cfg.Environ = mooncaketest.Environ()
	}
	if cfg.Log == nil {
		cfg.Log = quiet(t)
	}
	e := sideproc.New(cfg)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return e
}

// await waits until the engine's health is as wanted.
func await(t testing.TB, e *sideproc.Engine, wanted func(mooncake.Health) bool) mooncake.Health {
	t.Helper()
	timer := time.NewTimer(time.Minute)
	defer timer.Stop()
	for {
		changed := e.Changed()
		health := e.Health()
		if wanted(health) {
			return health
		}
		select {
		case <-changed:
		case <-timer.C:
			t.Fatalf("the engine's health is %+v", health)
		}
	}
}

func isReady(h mooncake.Health) bool { return h.Ready }

// TestEngine is the behaviour of an engine, on a real master.
func TestEngine(t *testing.T) {
	t.Parallel()
	python := mooncaketest.Python(t)
	master := mooncaketest.StartMaster(t, python)
	node := mooncaketest.StartPeer(t, python, master, lent)
	memory := newMemory(t, 4<<20)
	e := run(t, sideproc.Config{Python: python, Cluster: master.Config, Memory: memory})
	health := await(t, e, isReady)
	if health.Versions["mooncake"] == "" || health.Versions["python"] == "" {
		t.Errorf("versions %v", health.Versions)
	}
	t.Run("behaviour", func(t *testing.T) {
		mooncaketest.TestEngine(t, mooncaketest.Rig{Engine: e, Memory: memory.Bytes()})
	})
	t.Run("what we put a Python client gets", func(t *testing.T) { weToPython(t, e, memory.Bytes(), node) })
	t.Run("what a Python client puts we get", func(t *testing.T) { pythonToUs(t, e, memory.Bytes(), node) })
	t.Run("copies and places", func(t *testing.T) {
		replicas(t, e, memory.Bytes(), node, mooncaketest.StartPeer(t, python, master, lent))
	})
	t.Run("the process looks at what it is told", func(t *testing.T) { agentRefuses(t, e) })
	if got := e.Health(); got.Starts != 1 {
		t.Errorf("the process was started %d times", got.Starts)
	}
}

// shard is a shard of four layers.
func shard(i int) []byte {
	b := make([]byte, 4*3000)
	for k := range b {
		b[k] = byte(k*i + k>>8 + i)
	}
	return b
}

func weToPython(t *testing.T, e *sideproc.Engine, memory []byte, node *mooncaketest.Peer) {
	var objects []mooncake.Object
	for i := range 3 {
		r := mooncake.Range{Offset: uint64(i) * 16384, Bytes: uint64(len(shard(i)))}
		copy(memory[r.Offset:], shard(i))
		objects = append(objects, mooncake.Object{Key: fmt.Sprintf("ours@%d", i), Range: r})
	}
	if answers, err := e.Put(t.Context(), mooncake.Replication{}, objects); err != nil || !slices.Equal(answers, []mooncake.Answer{0, 0, 0}) {
		t.Fatalf("%v, %v", answers, err)
	}
	for i, o := range objects {
		var whole string
		node.Ask("get", map[string]any{"key": o.Key}, &whole)
		if whole != hex.EncodeToString(shard(i)) {
			t.Errorf("object %d: Python gets other bytes", i)
		}
		var parts struct {
			Code int
			Data string
		}
		node.Ask("get_parts", map[string]any{"key": o.Key, "size": len(shard(i)), "parts": 4}, &parts)
		if parts.Code != len(shard(i)) || parts.Data != hex.EncodeToString(shard(i)) {
			t.Errorf("object %d: Python gets other bytes in parts (%d)", i, parts.Code)
		}
	}
}

func pythonToUs(t *testing.T, e *sideproc.Engine, memory []byte, node *mooncaketest.Peer) {
	var code int
	node.Ask("put", map[string]any{"key": "theirs@0", "data": hex.EncodeToString(shard(5))}, &code)
	if code != 0 {
		t.Fatalf("put: %d", code)
	}
	node.Ask("put_parts", map[string]any{"key": "theirs@1", "data": hex.EncodeToString(shard(6)), "parts": 4}, &code)
	if code != 0 {
		t.Fatalf("put in parts: %d", code)
	}
	clear(memory[:32768])
	n := uint64(len(shard(5)))
	answers, err := e.Get(t.Context(), []mooncake.Object{
		{Key: "theirs@0", Range: mooncake.Range{Offset: 0, Bytes: n}}, {Key: "theirs@1", Range: mooncake.Range{Offset: 16384, Bytes: n}},
	})
	if err != nil || !slices.Equal(answers, []mooncake.Answer{mooncake.Answer(n), mooncake.Answer(n)}) {
		t.Fatalf("%v, %v", answers, err)
	}
	if !bytes.Equal(memory[:n], shard(5)) || !bytes.Equal(memory[16384:][:n], shard(6)) {
		t.Error("we get other bytes")
	}
}

func replicas(t *testing.T, e *sideproc.Engine, memory []byte, one, other *mooncaketest.Peer) {
	copy(memory, shard(1))
	r := mooncake.Range{Offset: 0, Bytes: uint64(len(shard(1)))}
	for key, c := range map[string]struct {
		how  mooncake.Replication
		want []string
	}{
		"two":  {mooncake.Replication{Replicas: 2}, []string{one.Segment, other.Segment}},
		"this": {mooncake.Replication{PreferredSegments: []string{one.Segment}}, []string{one.Segment}},
		"that": {mooncake.Replication{PreferredSegments: []string{other.Segment}}, []string{other.Segment}},
	} {
		answers, err := e.Put(t.Context(), c.how, []mooncake.Object{{Key: "places@" + key, Range: r}})
		if err != nil || answers[0] != 0 {
			t.Fatalf("%s: %v, %v", key, answers, err)
		}
		var got []string
		one.Ask("replicas", map[string]any{"key": "places@" + key}, &got)
		slices.Sort(got)
		slices.Sort(c.want)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: copies on %v, want %v", key, got, c.want)
		}
	}
	for _, bad := range []mooncake.Replication{{Replicas: -1}, {PreferredSegments: []string{""}}, {PreferredSegments: []string{"a\x00b"}}} {
		if _, err := e.Put(t.Context(), bad, []mooncake.Object{{Key: "places@bad", Range: r}}); err == nil {
			t.Errorf("%+v was not refused", bad)
		}
	}
}

// TestLendsMemory: the process lends the cluster memory, and needs no metadata
// server.
func TestLendsMemory(t *testing.T) {
	t.Parallel()
	python := mooncaketest.Python(t)
	master := mooncaketest.StartMaster(t, python)
	cfg := master.Config
	cfg.Mode, cfg.GlobalSegmentBytes, cfg.MetadataServer = cluster.ModeEmbedded, 32<<20, "P2PHANDSHAKE"
	memory := newMemory(t, 1<<20)
	e := run(t, sideproc.Config{Python: python, Cluster: cfg, Memory: memory})
	health := await(t, e, isReady)
	if health.Segment == "" {
		t.Error("the memory that is lent has no name")
	}
	copy(memory.Bytes(), shard(2))
	o := []mooncake.Object{{Key: "lent@1", Range: mooncake.Range{Bytes: uint64(len(shard(2)))}}}
	if answers, err := e.Put(t.Context(), mooncake.Replication{PreferredSegments: []string{health.Segment}}, o); err != nil || answers[0] != 0 {
		t.Fatalf("%v, %v", answers, err)
	}
	clear(memory.Bytes())
	if answers, err := e.Get(t.Context(), o); err != nil || int(answers[0]) != len(shard(2)) || !bytes.Equal(memory.Bytes()[:len(shard(2))], shard(2)) {
		t.Errorf("%v, %v", answers, err)
	}
	// Full is said with Mooncake's code.
	big := []mooncake.Object{{Key: "lent@", Range: mooncake.Range{Bytes: 1 << 20}}}
	for i := range 40 {
		big[0].Key = fmt.Sprintf("lent@big-%d", i)
		answers, err := e.Put(t.Context(), mooncake.Replication{HardPin: true}, big)
		if err != nil {
			t.Fatal(err)
		}
		if answers[0].Code() == mooncake.CodeNoSpace {
			return
		}
	}
	t.Error("40 MiB found room in 32")
}

// agentRefuses: what a call must not do is refused in the process, too, and costs
// nothing else.
func agentRefuses(t *testing.T, e *sideproc.Engine) {
	for _, r := range [][2]uint64{{4 << 20, 1}, {4<<20 - 100, 101}, {1 << 63, 1 << 63}, {^uint64(0), 2}, {0, 0}} {
		_, err := e.Unchecked(t.Context(), []mooncake.Object{{Key: "key", Range: mooncake.Range{Offset: r[0], Bytes: r[1]}}})
		if err == nil || !strings.Contains(err.Error(), "registered bytes") {
			t.Errorf("range %v: %v", r, err)
		}
	}
	for name, body := range map[string][]byte{
		"nothing":              {},
		"more keys than bytes": {1, 0, 0, 0, 255, 255, 255, 255},
		"fewer keys than said": {3, 0, 0, 0, 3, 0, 0, 0, 'a', 0, 'b'},
	} {
		if _, err := e.Raw(t.Context(), sideproc.KindExist, 1, body); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRealProcessFails: the process of Mooncake's wheel is stopped, and killed:
// calls fail, and the next process serves. What others lend the cluster is there.
func TestRealProcessFails(t *testing.T) {
	t.Parallel()
	python := mooncaketest.Python(t)
	master := mooncaketest.StartMaster(t, python)
	mooncaketest.StartPeer(t, python, master, lent)
	memory := newMemory(t, 1<<20)
	limits := quick
	limits.Ping, limits.Transfer = 100*time.Millisecond, 5*time.Second
	e := run(t, sideproc.Config{Python: python, Cluster: master.Config, Memory: memory, Limits: limits})
	await(t, e, isReady)
	copy(memory.Bytes(), shard(1))
	o := []mooncake.Object{{Key: "kept@1", Range: mooncake.Range{Bytes: uint64(len(shard(1)))}}}
	if answers, err := e.Put(t.Context(), mooncake.Replication{}, o); err != nil || answers[0] != 0 {
		t.Fatalf("%v, %v", answers, err)
	}
	for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		starts := e.Health().Starts
		if err := syscall.Kill(e.PID(), signal); err != nil {
			t.Fatal(err)
		}
		if signal == syscall.SIGSTOP {
			if _, err := e.Get(t.Context(), o); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%s: get: %v, want ErrUnavailable", signal, err)
			}
		}
		await(t, e, func(h mooncake.Health) bool { return h.Ready && h.Starts > starts })
		clear(memory.Bytes())
		if answers, err := e.Get(t.Context(), o); err != nil || int(answers[0]) != len(shard(1)) || !bytes.Equal(memory.Bytes()[:len(shard(1))], shard(1)) {
			t.Errorf("%s: %v, %v", signal, answers, err)
		}
	}
}

// TestMasterKilled: Mooncake's own code says so, and quickly to a question.
func TestMasterKilled(t *testing.T) {
	t.Parallel()
	python := mooncaketest.Python(t)
	master := mooncaketest.StartMaster(t, python)
	memory := newMemory(t, 1<<20)
	e := run(t, sideproc.Config{Python: python, Cluster: master.Config, Memory: memory})
	await(t, e, isReady)
	master.Kill()
	answers, err := e.Exist(t.Context(), []string{"key"})
	if err != nil || len(answers) != 1 || !answers[0].Code().MasterGone() {
		t.Errorf("%v, %v", answers, err)
	}
	// A process that begins without a master says what to look at.
	again := run(t, sideproc.Config{Python: python, Cluster: master.Config, Memory: memory})
	health := await(t, again, func(h mooncake.Health) bool { return strings.Contains(h.Reason, "setup") })
	if !strings.Contains(health.Reason, master.Config.MasterServerAddress) || !strings.Contains(health.Reason, "master") {
		t.Errorf("reason %q", health.Reason)
	}
}

// TestOtherVersion: a wheel that does not fit the master passes its setup. What it puts
// and gets finds it out, and says what to do; the one that fits serves.
func TestOtherVersion(t *testing.T) {
	t.Parallel()
	python, other := mooncaketest.Python(t), os.Getenv("MOONCAKE_SIDECAR_OTHER_MOONCAKE")
	if other == "" {
		t.Skip("MOONCAKE_SIDECAR_OTHER_MOONCAKE names no Python with another version of Mooncake's wheel")
	}
	master := mooncaketest.StartMaster(t, python)
	mooncaketest.StartPeer(t, python, master, lent)
	begun := time.Now()
	e := run(t, sideproc.Config{Python: other, Cluster: master.Config, Memory: newMemory(t, 1<<20)})
	health := await(t, e, func(h mooncake.Health) bool { return h.Ready || strings.Contains(h.Reason, "does the wheel (") })
	t.Logf("after %s: %s", time.Since(begun).Round(time.Millisecond), health.Reason)
	if health.Ready || !strings.Contains(health.Reason, "have the version of the cluster's master?") {
		t.Errorf("ready %v, reason %q", health.Ready, health.Reason)
	}
	if answers, err := e.Exist(t.Context(), []string{"key"}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("it answers %v, %v", answers, err)
	}
	await(t, run(t, sideproc.Config{Python: python, Cluster: master.Config, Memory: newMemory(t, 1<<20)}), isReady)
}

// TestNoWheel: an interpreter without Mooncake is named.
func TestNoWheel(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	if exec.CommandContext(t.Context(), python, "-I", "-c", "import mooncake.store").Run() == nil {
		t.Skip("the system's python3 has Mooncake")
	}
	e := run(t, sideproc.Config{
		Python: python, Memory: newMemory(t, 1<<20),
		Cluster: cluster.Config{MasterServerAddress: "127.0.0.1:1", MetadataServer: "P2PHANDSHAKE", LocalHostname: "127.0.0.1"},
	})
	health := await(t, e, func(h mooncake.Health) bool { return strings.Contains(h.Reason, "import") })
	if !strings.Contains(health.Reason, "mooncake-transfer-engine") || !strings.Contains(health.Reason, python) {
		t.Errorf("reason %q", health.Reason)
	}
}
