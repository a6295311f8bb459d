package daemon

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded/client"
)

// operated is a real mooncake-lookupd in a process of its own, with a worker's
// store client beside it.
type operated struct {
	t       *testing.T
	dir     string
	program string
	daemon  *exec.Cmd
	chunks  *client.Client
	ns      store.Namespace
	spec    *kv.NamespaceSpec
}

const operatedSlots = 64 << 10

func startOperated(t *testing.T, flags ...string) *operated {
	t.Helper()
	o := &operated{t: t, dir: shortDir(t), spec: spec()}
	o.spec.Model, o.spec.Groups[0].ShardBytes = "/models/operated", operatedSlots
	o.program = filepath.Join(t.TempDir(), "mooncake-lookupd")
	if out, err := exec.Command("go", "build", "-o", o.program, "../../cmd/mooncake-lookupd").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	o.daemon = exec.Command(o.program, append([]string{"--runtime-dir", o.dir, "--store-bytes", "64MiB", "--log-level", "error"}, flags...)...)
	o.daemon.Stderr = os.Stderr
	if err := o.daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.kill)
	until(t, "lookupd answers", func() bool { _, err := LookupdStatus(t.Context(), o.dir); return err == nil })
	chunks, closeStore, err := connectStore(storeEdge{dir: o.dir}, nil, quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := closeStore(); err != nil {
			t.Error(err)
		}
	})
	o.chunks = chunks
	until(t, "a store session", chunks.Ready)
	until(t, "all of the store's memory", func() bool {
		s := o.stats()
		return s.Prepared > 0 && s.Prepared == s.Capacity
	})
	if o.ns, err = o.chunks.OpenNamespace(t.Context(), o.spec); err != nil {
		t.Fatal(err)
	}
	return o
}

func (o *operated) kill() {
	if o.daemon != nil {
		_ = o.daemon.Process.Kill()
		_ = o.daemon.Wait() // it was killed
		o.daemon = nil
	}
}

// ctl runs the command and returns its exit code and output; with --json the
// output is read into into.
func (o *operated) ctl(in string, into any, args ...string) (code int, text string) {
	o.t.Helper()
	args = append([]string{"--runtime-dir", o.dir, "ctl"}, args...)
	if into != nil {
		args = append(args, "--json")
	}
	run := exec.Command(o.program, args...)
	run.Stdin = strings.NewReader(in)
	var out, errOut bytes.Buffer
	run.Stdout, run.Stderr = &out, &errOut
	err := run.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		o.t.Fatal(err)
	}
	if into != nil && out.Len() > 0 {
		if err := json.Unmarshal(out.Bytes(), into); err != nil {
			o.t.Errorf("%v: %v: %s", args, err, &out)
		}
	}
	return run.ProcessState.ExitCode(), out.String() + errOut.String()
}

// want runs the command and fails unless it ends so and says that.
func (o *operated) want(code int, says, in string, into any, args ...string) {
	o.t.Helper()
	if got, text := o.ctl(in, into, args...); got != code || !strings.Contains(text, says) {
		o.t.Errorf("ctl %s: code %d, want %d and %q: %s", strings.Join(args, " "), got, code, says, text)
	}
}

// key is the hash of chunk i of a chain.
func key(chain, i int) (h kv.Hash) {
	binary.BigEndian.PutUint64(h[:], uint64(uint32(i)*0x9E3779B1)<<32|uint64(chain))
	h[15] = 1
	return h
}

// list is a file of the hashes of a chain.
func list(chain, first, n int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# chain %d\n", chain)
	for i := first; i < first+n; i++ {
		fmt.Fprintln(&b, key(chain, i).Hex(16))
	}
	return b.String()
}

// put stores a chain and returns how many of its chunks the store took.
func (o *operated) put(chain, n int, tag string) (taken int) {
	o.t.Helper()
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	items := make([]store.PutItem, n)
	for i := range items {
		items[i] = store.PutItem{Hash: key(chain, i), Depth: uint32(i)}
		if i > 0 {
			items[i].Parent = key(chain, i-1)
		}
	}
	grants, err := o.chunks.PutStart(o.t.Context(), o.ns, store.PutOptions{SaltTag: tag}, items)
	if err != nil {
		o.t.Fatal(err)
	}
	var commits []store.PutCommit
	for _, g := range grants {
		if g.Status == store.PutGranted {
			data := o.chunks.Segments()[g.Place.Segment].Data()[g.Place.Offset:][:g.Place.Bytes]
			binary.LittleEndian.PutUint64(data, g.Ticket)
			commits = append(commits, store.PutCommit{Ticket: g.Ticket, Checksum: crc32.Checksum(data, castagnoli)})
		}
	}
	published, err := o.chunks.PutEnd(o.t.Context(), o.ns, commits)
	if err != nil {
		o.t.Fatal(err)
	}
	for _, done := range published {
		if done {
			taken++
		}
	}
	return taken
}

// found counts the chunks of a chain that a worker gets.
func (o *operated) found(chain, n int) (here int) {
	o.t.Helper()
	items := make([]store.GetItem, n)
	for i := range items {
		items[i].Hash = key(chain, i)
	}
	results, err := o.chunks.Get(o.t.Context(), o.ns, store.Lease{}, items)
	if err != nil {
		o.t.Fatal(err)
	}
	var refs []uint64
	for _, r := range results {
		if r.Status == store.GetReady {
			refs = append(refs, r.Ref)
		}
	}
	if err := o.chunks.Release(o.t.Context(), refs); err != nil {
		o.t.Fatal(err)
	}
	return len(refs)
}

type ctlStats struct {
	Chunks   int
	Pinned   uint64 `json:"pinned_bytes"`
	Prepared uint64 `json:"prepared_bytes"`
	Capacity uint64 `json:"capacity_bytes"`
	Draining bool
	Disk     *struct{ Chunks int }
	Policy   string            `json:"eviction_policy"`
	Counters map[string]uint64 `json:"counters"`
}

func (o *operated) stats() (s ctlStats) {
	o.t.Helper()
	o.want(0, "", "", &s, "stats")
	return s
}

// Every command of ctl against a real daemon, with chunks that a store client has
// put there.
func TestCtlOperatesARealDaemon(t *testing.T) {
	o := startOperated(t)
	if o.put(1, 20, "") != 20 || o.put(2, 30, "tenant-7") != 30 {
		t.Fatal("the store did not take the chunks")
	}
	var spaces []struct {
		ID     uint32
		Model  string
		Chunks int
		Bytes  uint64
	}
	o.want(0, "", "", &spaces, "namespaces")
	if len(spaces) != 1 || spaces[0].Model != "/models/operated" || spaces[0].Chunks != 50 || spaces[0].Bytes != 50*operatedSlots {
		t.Errorf("namespaces: %+v", spaces)
	}
	o.want(0, "/models/operated", "", nil, "namespaces")
	var usage []struct {
		Tag    string
		Chunks int
	}
	o.want(0, "", "", &usage, "usage", "--by-tag")
	byTag := map[string]int{}
	for _, u := range usage {
		byTag[u.Tag] = u.Chunks
	}
	if byTag["tenant-7"] != 30 || byTag[""] != 20 {
		t.Errorf("usage by tag: %+v", usage)
	}
	s := o.stats()
	if s.Chunks != 50 || s.Draining || s.Counters["puts_ended"] != 50 || s.Policy == "" {
		t.Errorf("stats: %+v", s)
	}
	var settings []struct{ Key, Value, Origin string }
	o.want(0, "", "", &settings, "config")
	said := map[string]string{}
	for _, c := range settings {
		said[c.Key] = c.Value + " " + c.Origin
	}
	if said["store_bytes"] != "64MiB flag" || said["lease_ttl"] != "30s default" {
		t.Errorf("config: %v", said)
	}

	t.Run("top", func(t *testing.T) { o.testTop(t) })
	t.Run("pins", func(t *testing.T) { o.testPins(t) })
	t.Run("bounds", func(t *testing.T) { o.testBounds(t) })
	t.Run("removal", func(t *testing.T) { o.testRemoval(t) })

	o.want(1, "no disk tier", list(9, 0, 2), nil, "prefetch", "--hashes", "-")
	o.want(2, "no namespace", "", nil, "pin", "--namespace", "other", "--hashes", "-")
	o.kill()
	o.want(3, "no mooncake-lookupd answers", "", nil, "stats")
}

func (o *operated) testTop(t *testing.T) {
	for range 3 {
		if o.found(1, 20) != 20 {
			t.Error("chunks are missing")
		}
	}
	var top []struct {
		Root, Leaf   string
		Hits, Tokens uint64
	}
	o.want(0, "", "", &top, "top", "--limit", "1")
	if len(top) != 1 || top[0].Root != key(1, 0).Hex(16) || top[0].Leaf != key(1, 19).Hex(16) || top[0].Hits != 3 || top[0].Tokens != 20*16 {
		t.Errorf("top: %+v", top)
	}
}

// What is pinned outlives any pressure; what is too much is refused with the
// reason.
func (o *operated) testPins(t *testing.T) {
	var done struct {
		Chunks  int
		Missing int `json:"missing_hashes"`
	}
	o.want(0, "", list(1, 0, 20)+list(8, 0, 3), &done, "pin", "--hashes", "-", "--hard", "--ttl", "1h")
	if done.Chunks != 20 || done.Missing != 3 {
		t.Errorf("pinned %+v", done)
	}
	s := o.stats()
	if s.Pinned != 20*operatedSlots {
		t.Errorf("%d bytes are pinned", s.Pinned)
	}
	fits := int(s.Prepared / operatedSlots)
	for chain := 10; chain < 14; chain++ {
		o.put(chain, fits/2, "")
	}
	if n := o.found(1, 20); n != 20 {
		t.Errorf("%d of 20 pinned chunks are left", n)
	}
	o.want(1, "hard pins have used up their share", list(13, 0, fits/2), nil, "pin", "--hashes", "-", "--hard")
	o.want(0, "unpinned 20 chunks", list(1, 0, 20), nil, "unpin", "--hashes", "-")
	o.want(1, "nothing was found", list(1, 0, 20), nil, "unpin", "--hashes", "-")
	if s := o.stats(); s.Pinned != 0 {
		t.Errorf("%d bytes are pinned", s.Pinned)
	}
	before := o.stats().Chunks
	o.want(0, "evicted 5 chunks", "", nil, "evict", "--chunks", "5", "--yes")
	if after := o.stats().Chunks; after != before-5 {
		t.Errorf("%d chunks before, %d after", before, after)
	}
}

// Quotas, times to live and draining bound what is put.
func (o *operated) testBounds(t *testing.T) {
	o.want(0, "a quota of 640.0 KiB", "", nil, "quota", "--tag", "tenant-8", "--bytes", "640KiB")
	o.put(20, 25, "tenant-8")
	var quotas []struct {
		Tag  string
		Used uint64 `json:"used_bytes"`
	}
	o.want(0, "", "", &quotas, "quota")
	if len(quotas) != 1 || quotas[0].Tag != "tenant-8" || quotas[0].Used > 640<<10 || quotas[0].Used == 0 {
		t.Errorf("quotas: %+v", quotas)
	}
	o.want(0, "no quota", "", nil, "quota", "--tag", "tenant-8", "--bytes", "0")
	o.want(0, "lives 1h0m0s", "", nil, "ttl", "--time", "1h")
	o.want(0, "nothing new is stored", "", nil, "drain")
	if n := o.put(21, 3, ""); n != 0 || !o.stats().Draining {
		t.Errorf("%d chunks were stored while draining", n)
	}
	o.want(0, "new chunks are stored", "", nil, "drain", "--resume")
	if n := o.put(21, 3, ""); n != 3 {
		t.Errorf("%d of 3 chunks are stored after draining", n)
	}
}

func (o *operated) testRemoval(t *testing.T) {
	o.put(30, 10, "tenant-9")
	o.put(31, 10, "")
	o.put(32, 10, "")
	o.want(2, "add --yes", "", nil, "remove", "--tag", "tenant-9")
	if o.found(30, 10) != 10 {
		t.Error("removed without --yes")
	}
	o.want(0, "removed 10 chunks", "", nil, "remove", "--tag", "tenant-9", "--yes")
	if n := o.found(30, 10) + o.found(31, 10); n != 10 {
		t.Errorf("%d chunks are left of two chains, one of which was removed", n)
	}
	o.want(0, "removed 6 chunks", list(31, 4, 1), nil, "remove", "--hashes", "-", "--chain", "--yes")
	if n := o.found(31, 10); n != 4 {
		t.Errorf("%d chunks are left in front of the one that was removed", n)
	}
	o.want(0, "removed 2 chunks", list(32, 0, 2), nil, "remove", "--hashes", "-", "--yes")
	o.want(1, "nothing was found", list(32, 0, 2), nil, "remove", "--hashes", "-", "--yes")
	o.want(0, "removed", "", nil, "remove", "--namespace", "operated", "--everything", "--yes")
	if s := o.stats(); s.Chunks != 0 {
		t.Errorf("%d chunks are left in an emptied store", s.Chunks)
	}
}

// Chunks that went to the disk are fetched, and removed, by command.
func TestCtlReachesTheDiskTier(t *testing.T) {
	o := startOperated(t, "--disk-dir", filepath.Join(t.TempDir(), "tier"), "--disk-bytes", "256MiB", "--disk-write-bytes-per-s", "1GiB")
	if s := o.stats(); s.Disk == nil {
		t.Fatal("the daemon has no disk tier")
	}
	const length = 100
	prefetch := func(chain int) (resident, begun int) {
		var reply struct {
			Resident int `json:"resident_chunks"`
			Begun    int `json:"begun_chunks"`
		}
		o.ctl(list(chain, 0, length), &reply, "prefetch", "--hashes", "-")
		return reply.Resident, reply.Begun
	}
	// Memory goes to newer chains, and the disk takes what it can of the older.
	chains, chain, before := 0, 0, 0
	untilLong(t, "a chain that is on the disk only", func() bool {
		chains++
		o.put(chains, length, "")
		for chain = max(1, chains-16); chain < chains; chain++ {
			resident, begun := prefetch(chain)
			if before = resident; begun > 0 {
				return true
			}
		}
		return false
	})
	until(t, "chunks that were fetched", func() bool {
		resident, _ := prefetch(chain)
		return resident > before
	})
	o.want(0, "removed", "", nil, "remove", "--namespace", "operated", "--everything", "--yes")
	o.want(1, "nothing was found", list(1, 0, length), nil, "prefetch", "--hashes", "-")
	until(t, "an empty disk", func() bool { return o.stats().Disk.Chunks == 0 })
}
