package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/internal/zmqx"
)

// publisher is an engine's: live and replay, as vLLM has them.
type publisher struct {
	t        *testing.T
	live     *zmqx.Publisher
	replay   *zmqx.Responder
	encoder  *kvevents.Encoder
	mu       sync.Mutex
	payloads [][]byte // by sequence number
}

func newPublisher(t *testing.T, endpoint, replay string) *publisher {
	t.Helper()
	transport, err := zmqx.NewWith(zmqx.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := &publisher{t: t, encoder: kvevents.NewEncoder()}
	if p.live, err = transport.Publish(endpoint, 1000); err != nil {
		t.Fatal(err)
	}
	if p.replay, err = transport.ListenStream(replay, 1000, p.answer); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(p.live.Close(), p.replay.Close(), transport.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

func sequence(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// answer answers a replay request: all batches from a number on.
func (p *publisher) answer(frames [][]byte, reply func([][]byte) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := frames[len(frames)-1]; len(last) == 8 {
		for n := binary.BigEndian.Uint64(last); n < uint64(len(p.payloads)); n++ {
			reply([][]byte{{}, sequence(n), p.payloads[n]})
		}
	}
	reply([][]byte{{}, sequence(1<<64 - 1), {}})
}

// tell publishes a batch; quiet: nobody hears it, and it is there to be asked for.
func (p *publisher) tell(quiet bool, events ...kvevents.Event) {
	p.t.Helper()
	payload, err := p.encoder.Encode(&kvevents.Batch{Time: 1, Events: events})
	if err != nil {
		p.t.Fatal(err)
	}
	payload = bytes.Clone(payload)
	p.mu.Lock()
	n := uint64(len(p.payloads))
	p.payloads = append(p.payloads, payload)
	p.mu.Unlock()
	if quiet {
		return
	}
	if err := p.live.Send([]byte{}, sequence(n), payload); err != nil {
		p.t.Fatal(err)
	}
}

// blocks are n blocks of 16 tokens that follow each other, the first of which has the
// number first.
func blocks(first, n int, medium string) *kvevents.BlockStored {
	e := &kvevents.BlockStored{BlockSize: 16, Medium: medium}
	if first > 0 {
		parent := kvevents.Hash(first)
		e.Parent = &parent
	}
	for b := first; b < first+n; b++ {
		e.Hashes = append(e.Hashes, kvevents.Hash(b+1))
		for i := range 16 {
			e.TokenIDs = append(e.TokenIDs, uint32(b*16+i))
		}
	}
	return e
}

func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// The command as users have it: started with a conductor_config.json, told by an engine,
// asked by a client, killed, and started again with what it knew.
func TestProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the command")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "mooncake-conductor")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	live, replay := "tcp://"+free(t), "tcp://"+free(t)
	_, port, _ := net.SplitHostPort(free(t))
	contract := fmt.Sprintf(`{"http_server_port": %s, "kvevent_instance": {"engine-a": {"endpoint": %q, "replay_endpoint": %q, "type": "vLLM", "modelname": "m", "block_size": 16, "dp_rank": 0}}}`, port, live, replay)
	contractFile := filepath.Join(dir, "conductor_config.json")
	if err := os.WriteFile(contractFile, []byte(contract), 0o600); err != nil {
		t.Fatal(err)
	}
	environment := append(os.Environ(), "CONDUCTOR_CONFIG_PATH="+contractFile, "CONDUCTOR_LOG_LEVEL=debug", "HOME="+dir, "MOONCAKE_SIDECAR_RUNTIME_DIR="+dir, "MOONCAKE_SIDECAR_SNAPSHOT_DIR="+dir)
	start := func() (*exec.Cmd, *bytes.Buffer) {
		cmd := exec.CommandContext(t.Context(), program)
		var log bytes.Buffer
		cmd.Env, cmd.Stderr = environment, &log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd, &log
	}
	base := "http://127.0.0.1:" + port
	status := func(path string) int {
		response, err := http.Get(base + path)
		if err != nil {
			return 0
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	ask := func(args ...string) (string, int) {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = environment
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	await := func(what string, so func() bool) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for !so() {
			if time.Now().After(deadline) {
				services, _ := ask("services", "--json")
				t.Fatalf("%s: it did not come to be\n%s", what, services)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	prompt := make([]string, 64)
	for i := range prompt {
		prompt[i] = fmt.Sprint(i)
	}
	usable := func() (longest, gpu, cpu int, complete bool) {
		out, code := ask("query", "--model", "m", "--tokens", strings.Join(prompt, ","), "--json")
		var answer map[string]map[string]struct {
			Longest  int `json:"longest_matched"`
			GPU, CPU int
			Complete bool `json:"complete"`
		}
		if err := json.Unmarshal([]byte(out), &answer); err != nil || code != 0 {
			t.Fatalf("%d %s", code, out)
		}
		row := answer["default"]["engine-a"]
		return row.Longest, row.GPU, row.CPU, row.Complete
	}

	if out, code := ask("services"); code != 3 || !strings.Contains(out, "no conductor answers") {
		t.Errorf("asked before it is there: %d %s", code, out)
	}
	engine := newPublisher(t, live, replay)
	engine.tell(true, blocks(0, 2, "GPU")) // before the conductor is there
	cmd, log := start()
	defer func() { _ = cmd.Process.Kill() }() // it has ended, unless the test failed
	await("ready", func() bool { return status("/readyz") == http.StatusOK })
	await("what was told before", func() bool { longest, _, _, complete := usable(); return longest == 32 && complete })
	engine.tell(false, blocks(2, 1, "GPU"), blocks(2, 2, "CPU"))
	await("what is told", func() bool { longest, gpu, _, _ := usable(); return longest == 64 && gpu == 48 })
	engine.tell(true, &kvevents.BlockRemoved{Hashes: []kvevents.Hash{3}, Medium: "GPU"}) // lost on its way
	engine.tell(false, &kvevents.BlockRemoved{Hashes: []kvevents.Hash{4}, Medium: "CPU"})
	await("a gap", func() bool { longest, gpu, _, complete := usable(); return longest == 48 && gpu == 32 && complete })
	for args, want := range map[string]string{
		"services": "engine-a", "status": "ready", "query --model m --tokens 1,2,3": "USABLE", "config print": "listen: :" + port, "--version": "mooncake-conductor",
	} {
		if out, code := ask(strings.Fields(args)...); code != 0 || !strings.Contains(out, want) {
			t.Errorf("%s: %d %s", args, code, out)
		}
	}
	if out, code := ask(); code != 3 || !strings.Contains(out, "already running") {
		t.Errorf("a second one: %d %s", code, out)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	again, log := start()
	await("ready again", func() bool { return status("/readyz") == http.StatusOK })
	await("what it knew", func() bool { longest, gpu, _, complete := usable(); return longest == 48 && gpu == 32 && complete })
	if err := again.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := again.Wait(); err != nil || !strings.Contains(log.String(), "begins with its snapshot") {
		t.Errorf("%v\n%s", err, log)
	}
}
