package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	"github.com/mooncake-sidecar/sidecar/cmd/internal/command"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/daemon"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
	"github.com/mooncake-sidecar/sidecar/store/embedded/storepb"
)

type heap []byte

func (h heap) Bytes() []byte                { return h }
func (h heap) Words() []atomic.Uint64       { return shm.Words(h) }
func (h heap) Prepare(uint64, uint64) error { return nil }

const (
	blocks    = 8
	hashBytes = 16
)

func hashOf(i int) (h kv.Hash) {
	copy(h[:], bytes.Repeat([]byte{byte(i + 1)}, hashBytes))
	return h
}

// storeOf makes a store with a hybrid model's chunks: full attention has blocks 0
// to 5, the sliding window of two blocks 0, 2, 3 and half of 5.
func storeOf(t *testing.T) *embedded.Master {
	t.Helper()
	layout, err := embedded.NewLayout([16]byte{1}, 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	master, err := embedded.Create(make(heap, layout.FileBytes), layout, embedded.Options{
		Alive: func(uint32, uint64) bool { return true }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	for more := true; more; {
		if more, err = master.PrepareNext(); err != nil {
			t.Fatal(err)
		}
	}
	session := embedded.Session{Client: 1, Number: 1}
	if err := master.OpenSession(session, 1, 1, embedded.Declaration{}); err != nil {
		t.Fatal(err)
	}
	spec := &kv.NamespaceSpec{
		Model: "/models/hybrid-1b", HashBytes: hashBytes, HashBlockTokens: 16, SchedulerBlockTokens: 16, RetentionTokens: -1,
		TP: 1, PP: 1, PCP: 1, DCP: 1, Layout: "LBHNC/rank_local",
		Groups: []kv.GroupSpec{
			{Kind: kv.FullAttention, BlockTokens: 16, ShardBytes: 4096, Shards: 1},
			{Kind: kv.SlidingWindow, BlockTokens: 16, WindowTokens: 32, ShardBytes: 4096, Shards: 2},
		},
	}
	ns, err := master.OpenNamespace(spec)
	if err != nil {
		t.Fatal(err)
	}
	var items []store.PutItem
	for i := range 6 {
		items = append(items, store.PutItem{Group: 0, Hash: hashOf(i)})
	}
	for _, i := range []int{0, 2, 3} {
		items = append(items, store.PutItem{Group: 1, Hash: hashOf(i)}, store.PutItem{Group: 1, Shard: 1, Hash: hashOf(i)})
	}
	items = append(items, store.PutItem{Group: 1, Hash: hashOf(5)})
	grants, err := master.PutStart(session, ns, items)
	if err != nil {
		t.Fatal(err)
	}
	var commits []store.PutCommit
	for _, g := range grants {
		commits = append(commits, store.PutCommit{Ticket: g.Ticket})
	}
	published, err := master.PutEnd(session, commits)
	if err != nil || len(published) != 13 {
		t.Fatal(published, err)
	}
	other := *spec
	other.Model = "/models/other"
	if _, err := master.OpenNamespace(&other); err != nil {
		t.Fatal(err)
	}
	return master
}

// serve puts the store's service where a daemon would have it and returns the
// runtime directory.
func serve(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ex") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, config.StoreSocket))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	storepb.RegisterStoreServer(server, embedded.NewService(storeOf(t)))
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return dir
}

// invoke runs the command and returns its exit code and outputs.
func invoke(args ...string) (code int, out, errOut string) {
	var stdout, stderr bytes.Buffer
	cfg := &config.LookupdConfig{}
	d := lookupdCommand(cfg)
	d.Run = func(context.Context, daemon.Control, *slog.Logger) error { return errors.New("the daemon ran") }
	d.Out, d.Err = &stdout, &stderr
	code = d.Main(context.Background(), append([]string{"mooncake-lookupd"}, args...))
	return code, stdout.String(), stderr.String()
}

func hashFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "hashes")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func hexLines() string {
	var b strings.Builder
	for i := range blocks {
		h := hashOf(i)
		fmt.Fprintln(&b, h.Hex(hashBytes))
	}
	return b.String()
}

func TestExplain(t *testing.T) {
	dir := serve(t)
	file := hashFile(t, hexLines())
	code, out, errOut := invoke("--runtime-dir", dir, "explain", "--namespace", "hybrid-1b", "--hashes", file)
	if code != command.ExitOK {
		t.Fatalf("code %d, %s", code, errOut)
	}
	for _, want := range []string{
		"of /models/hybrid-1b\nhit 64 of 129 tokens; at most 128 can be reused",
		"   0      full_attention  16     -       96     6 of 8  chunk 6 (tokens 96 to 112) is absent and ends the leading run",
		"*  1      sliding_window  16     32      64     3 of 8  no whole window of 32 tokens is stored before a boundary beyond 64 tokens; chunk 4",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}

	// A request of its own length, as JSON, by number; the window's half block.
	file = hashFile(t, `{"tokens": 50, "hashes": ["`+strings.Join(strings.Fields(hexLines()), `", "`)+`"]}`)
	code, out, errOut = invoke("explain", "--runtime-dir", dir, "--namespace", "0", "--hashes", file, "--json")
	var x jsonExplanation
	if err := json.Unmarshal([]byte(out), &x); code != command.ExitOK || err != nil {
		t.Fatalf("code %d, %v, %s", code, err, errOut)
	}
	if x.Tokens != 50 || x.Hit != 16 || x.Reusable != 48 || len(x.Groups) != 2 || x.Groups[1].FirstMissing != 1 || !x.Groups[1].Limits || x.Groups[0].Limits {
		t.Errorf("explained %+v", x)
	}
	_, out, _ = invoke("explain", "--runtime-dir", dir, "--namespace", x.Digest[:6], "--hashes", file, "--tokens", "129", "--json")
	if err := json.Unmarshal([]byte(out), &x); err != nil || x.Hit != 64 || x.Groups[1].Partial != 1 || x.Groups[1].Failed != 0 {
		t.Errorf("%v, explained %+v", err, x)
	}
}

func TestExplainLists(t *testing.T) {
	dir := serve(t)
	code, out, errOut := invoke("explain", "--runtime-dir", dir)
	if code != command.ExitOK || strings.Count(out, "\n") != 3 || !strings.Contains(out, "/models/other") {
		t.Errorf("code %d, %s\n%s", code, errOut, out)
	}
	var list []jsonNamespace
	_, out, _ = invoke("explain", "--runtime-dir", dir, "--json")
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 2 || list[0].Groups != 2 {
		t.Errorf("%v, %+v", err, list)
	}
}

func TestExplainRefuses(t *testing.T) {
	dir := serve(t)
	good := hashFile(t, hexLines())
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{command.ExitUsage, "which of 2 namespaces", []string{"--hashes", good}},
		{command.ExitUsage, `no namespace "nope"`, []string{"--hashes", good, "--namespace", "nope"}},
		{command.ExitUsage, "without --hashes", []string{"--tokens", "5"}},
		{command.ExitUsage, "no such file", []string{"--namespace", "0", "--hashes", "/nonexistent"}},
		{command.ExitUsage, "hash 0", []string{"--namespace", "0", "--hashes", hashFile(t, "xyz\n")}},
		{command.ExitUsage, "hash 1 has 2 bytes", []string{"--namespace", "0", "--hashes", hashFile(t, strings.Repeat("ab", 16)+"\nabcd\n")}},
		{command.ExitUsage, "tokens is -1", []string{"--namespace", "0", "--hashes", hashFile(t, `{"tokens": -1}`)}},
		{command.ExitUsage, "-7 tokens", []string{"--namespace", "0", "--hashes", good, "--tokens", "-7"}},
		{command.ExitFailure, "hashes of 32 bytes", []string{"--namespace", "0", "--hashes", hashFile(t, strings.Repeat("ab", 32))}},
		{command.ExitFailure, daemon.ErrNotRunning.Error(), []string{"--runtime-dir", t.TempDir()}},
	} {
		args := append([]string{"--runtime-dir", dir, "explain"}, c.args...)
		if code, out, errOut := invoke(args...); code != c.code || !strings.Contains(errOut, c.says) {
			t.Errorf("%v: code %d, want %d and %q; says %s%s", c.args, code, c.code, c.says, errOut, out)
		}
	}
}

func TestExplainHelp(t *testing.T) {
	code, out, _ := invoke("explain", "--help")
	for _, want := range []string{"Examples:", "mooncake-lookupd explain --namespace 0 --hashes request.txt", "--json", "--runtime-dir"} {
		if code != command.ExitOK || !strings.Contains(out, want) {
			t.Errorf("code %d, no %q in\n%s", code, want, out)
		}
	}
}

// FuzzHashFile: whatever the file is, reading it neither panics nor yields hashes
// of a length that no namespace has.
func FuzzHashFile(f *testing.F) {
	f.Add([]byte(hexLines()))
	f.Add([]byte(`{"tokens": 9, "hashes": ["abababababababab"]}`))
	f.Add([]byte("\n\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		tokens, hashes, err := parseHashes(data)
		if err == nil && (tokens < 0 || hashes.Len() > 0 && (hashes.HashLen() < 8 || hashes.HashLen() > kv.MaxHashBytes)) {
			t.Errorf("%d tokens, %d hashes of %d bytes", tokens, hashes.Len(), hashes.HashLen())
		}
	})
}
