package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/mooncake-sidecar/sidecar/cmd/internal/command"
	"github.com/mooncake-sidecar/sidecar/internal/admin/adminpb"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// fakeAdmin answers what a test has laid ready, by request type, and keeps the
// last request.
type fakeAdmin struct {
	adminpb.UnimplementedAdminServer
	reply proto.Message
	fail  error
	hang  bool
	last  proto.Message
}

func answer[R proto.Message](ctx context.Context, f *fakeAdmin, request proto.Message, empty R) (R, error) {
	f.last = request
	if f.hang {
		<-ctx.Done()
	}
	if r, ok := f.reply.(R); ok && f.fail == nil {
		return r, nil
	}
	return empty, f.fail
}

func ctlSpecs() []*kv.NamespaceSpec {
	group := kv.GroupSpec{Kind: kv.FullAttention, BlockTokens: 16, ShardBytes: 4096, Shards: 1}
	return []*kv.NamespaceSpec{
		{Model: "/models/big", HashBytes: hashBytes, Groups: []kv.GroupSpec{group, group}}, {Model: "/models/small\x1b[1m", HashBytes: 32, Groups: []kv.GroupSpec{group}},
	}
}

func (f *fakeAdmin) ListNamespaces(context.Context, *adminpb.ListNamespacesRequest) (*adminpb.ListNamespacesReply, error) {
	reply := &adminpb.ListNamespacesReply{}
	for i, s := range ctlSpecs() {
		text, err := json.Marshal(s)
		if err != nil {
			return nil, err
		}
		d := s.Digest()
		reply.Namespaces = append(reply.Namespaces, &adminpb.ListNamespacesReply_Entry{
			Digest: d[:], Id: uint32(i), Spec: text, Amount: &adminpb.Amount{Chunks: 3, Bytes: 3 << 20}, PinnedBytes: 1 << 20, QuotaBytes: 5 << 30,
		})
	}
	return reply, nil
}

func (f *fakeAdmin) GetStats(ctx context.Context, r *adminpb.GetStatsRequest) (*adminpb.GetStatsReply, error) {
	return answer(ctx, f, r, &adminpb.GetStatsReply{})
}

func (f *fakeAdmin) GetUsage(ctx context.Context, r *adminpb.GetUsageRequest) (*adminpb.GetUsageReply, error) {
	return answer(ctx, f, r, &adminpb.GetUsageReply{})
}

func (f *fakeAdmin) TopPrefixes(ctx context.Context, r *adminpb.TopPrefixesRequest) (*adminpb.TopPrefixesReply, error) {
	return answer(ctx, f, r, &adminpb.TopPrefixesReply{})
}

func (f *fakeAdmin) ListQuotas(ctx context.Context, r *adminpb.ListQuotasRequest) (*adminpb.ListQuotasReply, error) {
	return answer(ctx, f, r, &adminpb.ListQuotasReply{})
}

func (f *fakeAdmin) GetConfiguration(ctx context.Context, r *adminpb.GetConfigurationRequest) (*adminpb.GetConfigurationReply, error) {
	return answer(ctx, f, r, &adminpb.GetConfigurationReply{})
}

func (f *fakeAdmin) Evict(ctx context.Context, r *adminpb.EvictRequest) (*adminpb.EvictReply, error) {
	return answer(ctx, f, r, &adminpb.EvictReply{})
}

func (f *fakeAdmin) Pin(ctx context.Context, r *adminpb.PinRequest) (*adminpb.PinReply, error) {
	return answer(ctx, f, r, &adminpb.PinReply{Pinned: &adminpb.Found{}})
}

func (f *fakeAdmin) Unpin(ctx context.Context, r *adminpb.UnpinRequest) (*adminpb.UnpinReply, error) {
	return answer(ctx, f, r, &adminpb.UnpinReply{Unpinned: &adminpb.Found{}})
}

func (f *fakeAdmin) Prefetch(ctx context.Context, r *adminpb.PrefetchRequest) (*adminpb.PrefetchReply, error) {
	return answer(ctx, f, r, &adminpb.PrefetchReply{})
}

func (f *fakeAdmin) Remove(ctx context.Context, r *adminpb.RemoveRequest) (*adminpb.RemoveReply, error) {
	return answer(ctx, f, r, &adminpb.RemoveReply{})
}

func (f *fakeAdmin) SetQuota(ctx context.Context, r *adminpb.SetQuotaRequest) (*adminpb.SetQuotaReply, error) {
	return answer(ctx, f, r, &adminpb.SetQuotaReply{})
}

func (f *fakeAdmin) SetTTL(ctx context.Context, r *adminpb.SetTTLRequest) (*adminpb.SetTTLReply, error) {
	return answer(ctx, f, r, &adminpb.SetTTLReply{})
}

func (f *fakeAdmin) SetDraining(ctx context.Context, r *adminpb.SetDrainingRequest) (*adminpb.SetDrainingReply, error) {
	return answer(ctx, f, r, &adminpb.SetDrainingReply{OpenPuts: 4})
}

// serveAdmin puts a service where a daemon would have it and returns the runtime
// directory.
func serveAdmin(t *testing.T, f adminpb.AdminServer) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ctl") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, config.StoreSocket))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	adminpb.RegisterAdminServer(server, f)
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

func found(chunks, missing uint64) *adminpb.Found {
	return &adminpb.Found{Amount: &adminpb.Amount{Chunks: chunks, Bytes: chunks * 4096}, MissingHashes: missing}
}

// What each command asks, prints and returns.
func TestCtl(t *testing.T) {
	f := &fakeAdmin{}
	dir := serveAdmin(t, f)
	big, small := ctlSpecs()[0].Digest(), ctlSpecs()[1].Digest()
	file := hashFile(t, "# system prompt\n"+hexLines()+"\n0x"+strings.Repeat("Ff", hashBytes)+" # last\n")
	var blob []byte
	for i := range blocks {
		h := hashOf(i)
		blob = append(blob, h[:hashBytes]...)
	}
	blob = append(blob, bytes.Repeat([]byte{0xff}, hashBytes)...)
	keys := func(groups ...uint32) *adminpb.Keys {
		return &adminpb.Keys{Namespace: big[:], Hashes: blob, Groups: groups}
	}
	amount := &adminpb.Amount{Chunks: 5, Bytes: 5 << 30}
	for _, c := range []struct {
		args  string
		reply proto.Message
		code  int
		says  []string // on either stream
		asks  proto.Message
	}{
		{"namespaces", nil, 0, []string{"/models/big", "/models/small?[1m", "3.0 MiB", "5.0 GiB"}, nil},
		{"stats", &adminpb.GetStatsReply{
			UsedBytes: 1 << 30, PreparedBytes: 2 << 30, CapacityBytes: 3 << 30, UndeclaredClients: 1, EvictionPolicy: "lru", Draining: true, DiskCapacityBytes: 1 << 40,
			Counters: map[string]uint64{"gets_ready": 12}, MissRatios: []*adminpb.MissRatio{{MemoryFactor: 2, MissRatio: 0.39}},
			Nodes: []*adminpb.NodeMemory{{UsedBytes: 1 << 20, PreparedBytes: 1 << 30}, {Node: proto.Uint32(4), UsedBytes: 1 << 29, PreparedBytes: 3 << 29}},
		}, 0, []string{"1.0 GiB used of 2.0 GiB", "memory to come", "workers awaited", "lru", "draining", "1.0 TiB", "gets_ready", "on no node", "on NUMA node 4", "512.0 MiB used of 1.5 GiB", "with 2x memory    61.0 % of the blocks hit"}, nil},
		{"usage", &adminpb.GetUsageReply{Entries: []*adminpb.GetUsageReply_Entry{{Namespace: big[:], Amount: amount, RefusedPuts: 9}}}, 0,
			[]string{"0 big", "5.0 GiB", "REFUSED"}, &adminpb.GetUsageRequest{}},
		{"usage --by-tag", &adminpb.GetUsageReply{Entries: []*adminpb.GetUsageReply_Entry{{Amount: amount}, {Tag: "t\n", Amount: amount}}}, 0,
			[]string{"(none)", "t?"}, &adminpb.GetUsageRequest{ByTag: true}},
		{"top --limit 3 --namespace big", &adminpb.TopPrefixesReply{Prefixes: []*adminpb.TopPrefixesReply_Entry{
			{Namespace: big[:], Leaf: blob[:16], Hits: 77, Tokens: 1600, Amount: amount},
		}}, 0, []string{"0 big", "77", "1600", "-      0101010101010101"}, &adminpb.TopPrefixesRequest{Namespace: big[:], Limit: 3}},
		{"config", &adminpb.GetConfigurationReply{Settings: []*adminpb.GetConfigurationReply_Setting{{Key: "linger", Value: "1m", Origin: "flag", Where: "--linger"}}}, 0,
			[]string{"linger", "flag --linger"}, nil},
		{"evict --bytes 4GiB --yes", &adminpb.EvictReply{Evicted: amount, Short: true, BusyChunks: 2}, 0,
			[]string{"evicted 5 chunks, 5.0 GiB; 2 chunks are in use or pinned"}, &adminpb.EvictRequest{Bytes: 4 << 30}},
		{"evict --chunks 7 --yes", nil, 1, []string{"evicted 0 chunks", "nothing was found"}, &adminpb.EvictRequest{Chunks: 7}},
		{"pin --namespace 0 --hard --ttl 90s --hashes " + file, &adminpb.PinReply{Pinned: found(3, 2)}, 0, []string{"pinned 3 chunks, 12.0 KiB; of 2 hashes nothing is stored"},
			&adminpb.PinRequest{Keys: keys(), Kind: adminpb.PinRequest_KIND_HARD, TtlSeconds: 90}},
		{"pin --namespace 0 --group 1 --group 0 --hashes " + file, &adminpb.PinReply{Pinned: found(0, 9)}, 1, []string{"nothing was found"},
			&adminpb.PinRequest{Keys: keys(1, 0), Kind: adminpb.PinRequest_KIND_SOFT}},
		{"unpin --namespace big --hashes " + file, &adminpb.UnpinReply{Unpinned: found(1, 0)}, 0, []string{"unpinned 1 chunks"}, &adminpb.UnpinRequest{Keys: keys()}},
		{"prefetch --namespace big --hashes " + file, &adminpb.PrefetchReply{BegunChunks: 2, ResidentChunks: 1}, 0, []string{"2 chunks are being fetched, 1 are in memory"},
			&adminpb.PrefetchRequest{Keys: keys()}},
		{"prefetch --namespace big --hashes " + file, &adminpb.PrefetchReply{}, 1, []string{"nothing was found"}, nil},
		{"remove --namespace 1 --everything --yes", &adminpb.RemoveReply{Removed: amount}, 0, []string{"removed 5 chunks"},
			&adminpb.RemoveRequest{Namespace: small[:], Scope: &adminpb.RemoveRequest_Everything{Everything: true}}},
		{"remove --tag t --yes", &adminpb.RemoveReply{Removed: amount}, 0, nil, &adminpb.RemoveRequest{Scope: &adminpb.RemoveRequest_Tag{Tag: "t"}}},
		{"remove --tag t --yes", &adminpb.RemoveReply{DiskChunks: 9}, 0, []string{"removed 0 chunks, 0 B; the disk had 9"}, nil},
		{"remove --tag t --namespace 0 --yes", &adminpb.RemoveReply{}, 1, nil, &adminpb.RemoveRequest{Namespace: big[:], Scope: &adminpb.RemoveRequest_Tag{Tag: "t"}}},
		{"remove --namespace 0 --chain --yes --hashes " + file, &adminpb.RemoveReply{Removed: amount, MissingHashes: 1}, 0, []string{"of 1 hashes nothing is stored"},
			&adminpb.RemoveRequest{Namespace: big[:], Scope: &adminpb.RemoveRequest_Hashes_{Hashes: &adminpb.RemoveRequest_Hashes{Hashes: blob, Chain: true}}}},
		{"quota", &adminpb.ListQuotasReply{Quotas: []*adminpb.ListQuotasReply_Entry{{Tag: "t", QuotaBytes: 1 << 30}, {Namespace: big[:], UsedBytes: 1 << 20}}}, 0,
			[]string{"tag t", "1.0 GiB", "namespace 0 big"}, nil},
		{"quota --tag t --bytes 1.5GiB", nil, 0, []string{`salt tag "t" has a quota of 1.5 GiB`}, &adminpb.SetQuotaRequest{Tag: "t", Bytes: 3 << 29}},
		{"quota --namespace 0 --bytes 0", nil, 0, []string{"has no quota"}, &adminpb.SetQuotaRequest{Namespace: big[:]}},
		{"ttl --namespace 0 --time 2h", nil, 0, []string{"lives 2h0m0s"}, &adminpb.SetTTLRequest{Namespace: big[:], TtlSeconds: 7200}},
		{"ttl --namespace 0 --time 0", nil, 0, []string{"lives for ever"}, &adminpb.SetTTLRequest{Namespace: big[:]}},
		{"drain", nil, 0, []string{"4 puts are under way"}, &adminpb.SetDrainingRequest{Draining: true}},
		{"drain --resume", nil, 0, []string{"new chunks are stored"}, &adminpb.SetDrainingRequest{}},
	} {
		f.reply, f.last, f.fail = c.reply, nil, nil
		args := append([]string{"--runtime-dir", dir, "ctl"}, strings.Fields(c.args)...)
		code, out, errOut := invoke(args...)
		if code != c.code {
			t.Errorf("%s: code %d, want %d: %s%s", c.args, code, c.code, out, errOut)
		}
		for _, text := range c.says {
			if !strings.Contains(out+errOut, text) {
				t.Errorf("%s: no %q in\n%s%s", c.args, text, out, errOut)
			}
		}
		if c.asks != nil && !proto.Equal(f.last, c.asks) {
			t.Errorf("%s: asked %v, want %v", c.args, f.last, c.asks)
		}
		// The same as JSON: one value, with the same exit code.
		f.last = nil
		code, out, errOut = invoke(append(args, "--json")...)
		var value any
		if err := json.Unmarshal([]byte(out), &value); err != nil || code != c.code {
			t.Errorf("%s --json: code %d, %v: %s%s", c.args, code, err, out, errOut)
		}
	}
}

// Without --yes nothing is destroyed, and it is said what would go.
func TestCtlConfirms(t *testing.T) {
	f := &fakeAdmin{}
	dir := serveAdmin(t, f)
	for args, says := range map[string]string{
		"evict --chunks 5":                        "evict 5 chunks",
		"evict --bytes 1GiB":                      "evict 1.0 GiB",
		"remove --namespace 0 --everything":       "remove all 3 chunks (3.0 MiB) of namespace 0 (/models/big)",
		"remove --tag t":                          `remove what has the salt tag "t" of all namespaces`,
		"remove --namespace 0 --chain --hashes -": "remove the chunks of 1 hashes of namespace 0 (/models/big) and all behind them",
	} {
		code, out, errOut := invokeReading(strings.Repeat("ab", hashBytes), append([]string{"--runtime-dir", dir, "ctl"}, strings.Fields(args)...)...)
		if code != command.ExitUsage || !strings.Contains(errOut, "this would "+says+"; add --yes") || f.last != nil || out != "" {
			t.Errorf("%s: code %d, %s%s, asked %v", args, code, out, errOut, f.last)
		}
	}
}

// invokeReading is invoke with a standard input, which the command library takes
// from the process.
func invokeReading(in string, args ...string) (code int, out, errOut string) {
	name := filepath.Join(os.TempDir(), fmt.Sprintf("ctl-in-%d", time.Now().UnixNano()))
	defer os.Remove(name)
	stdin := os.Stdin
	defer func() { os.Stdin = stdin }()
	if err := os.WriteFile(name, []byte(in), 0o600); err != nil {
		return -1, "", err.Error()
	}
	file, err := os.Open(name)
	if err != nil {
		return -1, "", err.Error()
	}
	defer file.Close()
	os.Stdin = file
	return invoke(args...)
}

func TestCtlUsage(t *testing.T) {
	f := &fakeAdmin{}
	dir := serveAdmin(t, f)
	good := hashFile(t, strings.Repeat("ab", hashBytes))
	for args, says := range map[string]string{
		"nonsense":                                              `no subcommand "nonsense"`,
		"namespaces extra":                                      `unexpected argument "extra"`,
		"stats --timeout 0s":                                    "more than 0",
		"top --limit 0":                                         "1 to 1000",
		"evict --yes":                                           "--bytes or --chunks",
		"evict --chunks 1 --bytes 1 --yes":                      "--bytes or --chunks",
		"evict --bytes lots --yes":                              "--bytes",
		"evict --chunks -1 --yes":                               "--help",
		"pin --namespace 0":                                     "--hashes",
		"pin --hashes " + good:                                  "which of 2 namespaces",
		"pin --namespace nope --hashes -":                       `no namespace "nope"`,
		"pin --namespace 0 --ttl 1ms":                           "--ttl",
		"pin --namespace 0 --ttl 999999h":                       "--ttl",
		"unpin --namespace 0 --hashes /no/x":                    "no such file",
		"unpin --namespace 0 --group 2 --hashes " + good:        "0 to 1",
		"unpin --namespace 1 --hashes " + good:                  ":1: a hash of 16 bytes; the namespace has hashes of 32, which are 64 digits",
		"unpin --namespace 0 --hashes " + hashFile(t, "\nzz\n"): `:2: "zz" is not hexadecimal`,
		"unpin --namespace 0 --hashes " + hashFile(t, "# x\n"):  "no hashes in it",
		"remove --yes":                                          "one of --everything",
		"remove --tag t --everything --yes":                     "one of --everything",
		"remove --everything --yes":                             "wants --namespace",
		"remove --tag t --chain --yes":                          "--chain without",
		"quota --tag t":                                         "--bytes is missing",
		"quota --tag t --namespace 0 --bytes 1":                 "not both",
		"quota --bytes x --tag t":                               "--bytes",
		"ttl --namespace 0":                                     "--time",
		"ttl --namespace 0 --time 5ms":                          "whole seconds",
		"ttl --namespace 0 --time -5s":                          "whole seconds",
	} {
		code, out, errOut := invoke(append([]string{"--runtime-dir", dir, "ctl"}, strings.Fields(args)...)...)
		if code != command.ExitUsage || !strings.Contains(errOut, says) || f.last != nil {
			t.Errorf("%s: code %d, want 2 and %q: %s%s, asked %v", args, code, says, out, errOut, f.last)
		}
	}
}

func TestCtlFailures(t *testing.T) {
	f := &fakeAdmin{fail: status.Error(codes.ResourceExhausted, "hard pins have used up their share")}
	dir := serveAdmin(t, f)
	good := hashFile(t, strings.Repeat("ab", hashBytes))
	if code, out, errOut := invoke("ctl", "pin", "--runtime-dir", dir, "--namespace", "0", "--hashes", good); code != command.ExitFailure ||
		!strings.Contains(errOut, "refused: hard pins have used up their share") || out != "" {
		t.Errorf("refused: code %d, %s%s", code, out, errOut)
	}
	f.hang = true
	if code, _, errOut := invoke("ctl", "stats", "--runtime-dir", dir, "--timeout", "50ms"); code != command.ExitUnreachable || !strings.Contains(errOut, "does not answer") {
		t.Errorf("hanging: code %d, %s", code, errOut)
	}
	if code, _, errOut := invoke("ctl", "stats", "--runtime-dir", t.TempDir()); code != command.ExitUnreachable || !strings.Contains(errOut, "is it started") {
		t.Errorf("nobody there: code %d, %s", code, errOut)
	}
	if code, _, errOut := invoke("ctl", "stats", "--runtime-dir", serve(t)); code != command.ExitFailure || !strings.Contains(errOut, "earlier version") {
		t.Errorf("an older daemon: code %d, %s", code, errOut)
	}
	f.hang, f.fail = false, nil
	bad := &badNamespaces{fakeAdmin: f}
	if code, _, errOut := invoke("ctl", "namespaces", "--runtime-dir", serveAdmin(t, bad)); code != command.ExitFailure || !strings.Contains(errOut, "namespace 7") {
		t.Errorf("a broken answer: code %d, %s", code, errOut)
	}
}

// badNamespaces answers with what is no namespace.
type badNamespaces struct{ *fakeAdmin }

func (badNamespaces) ListNamespaces(context.Context, *adminpb.ListNamespacesRequest) (*adminpb.ListNamespacesReply, error) {
	return &adminpb.ListNamespacesReply{Namespaces: []*adminpb.ListNamespacesReply_Entry{{Id: 7, Spec: []byte("{")}}}, nil
}

// Every command has examples, and they are of that command.
func TestCtlHelp(t *testing.T) {
	code, out, _ := invoke("ctl")
	if code != command.ExitOK || !strings.Contains(out, "Examples:") {
		t.Errorf("code %d\n%s", code, out)
	}
	names := 0
	for _, sub := range ctlCommand(nil).Commands {
		names++
		code, out, _ := invoke("ctl", sub.Name, "--help")
		for _, want := range []string{"Examples:", "mooncake-lookupd ctl " + sub.Name, "--json", "--runtime-dir", "--timeout"} {
			if code != command.ExitOK || !strings.Contains(out, want) {
				t.Errorf("%s: code %d, no %q in\n%s", sub.Name, code, want, out)
			}
		}
		if !strings.Contains(out, sub.Usage) {
			t.Errorf("%s is not in ctl's help", sub.Name)
		}
	}
	if names < 13 {
		t.Errorf("only %d commands", names)
	}
}

// FuzzHashList: whatever the file is, reading it neither panics nor yields a part
// of a hash.
func FuzzHashList(f *testing.F) {
	f.Add([]byte(hexLines()), 16)
	f.Add([]byte(`{"hashes": ["abababababababab"]}`), 8)
	f.Add([]byte("# \n0xzz\n"), 32)
	f.Fuzz(func(t *testing.T, data []byte, length int) {
		if length < 8 || length > kv.MaxHashBytes {
			return
		}
		hashes, err := parseHashList(bytes.NewReader(data), length)
		if err == nil && (len(hashes) == 0 || len(hashes)%length != 0) {
			t.Errorf("%d bytes of hashes of %d", len(hashes), length)
		}
		if err != nil && !strings.HasPrefix(err.Error(), ":") {
			t.Errorf("%v does not say where", err)
		}
	})
}
