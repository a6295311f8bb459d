package daemon

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/unixmsg"
	"github.com/mooncake-sidecar/sidecar/internal/wire"
	"github.com/mooncake-sidecar/sidecar/internal/zmqx"
)

var (
	// kills is how often TestKilledUnderLoad kills lookupd, in all.
	kills    = flag.Int("kills", 40, "how often lookupd is killed under load")
	killsLog = flag.Bool("kills.log", false, "show what the daemons that are killed say")
)

// process is a process of this test binary.
type process struct {
	t       *testing.T
	command *exec.Cmd
	in      io.WriteCloser
	out     *json.Decoder
}

// spawn starts a process that is spoken to by lines.
func spawn(t *testing.T, what string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, command: exec.Command(self)}
	p.command.Env = append(os.Environ(), asDaemon+"="+what)
	if p.in, err = p.command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = json.NewDecoder(bufio.NewReader(out))
	if *killsLog {
		p.command.Stderr = os.Stderr
	}
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	return p
}

// kill is kill -9, and the wait for its end.
func (p *process) kill() {
	if p.command != nil {
		_ = p.command.Process.Kill()
		_ = p.command.Wait() // killed
		p.command = nil
	}
}

// say gives a loader a command; more than one loader may be at work at a time.
func (p *process) say(command string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, command); err != nil {
		p.t.Fatalf("%s: %v", command, err)
	}
}

// hear waits for the answer to a command.
func (p *process) hear(command string) loadAnswer {
	p.t.Helper()
	var a loadAnswer
	if err := p.out.Decode(&a); err != nil {
		p.t.Fatalf("%s: the loader has ended: %v", command, err)
	}
	if a.Error != "" {
		p.t.Fatal(a.Error)
	}
	return a
}

// killing is a test of lookupd's death: two workers keep the segment, as they do
// for engines, and two loaders use the store.
type killing struct {
	t        *testing.T
	dir      string
	what     string // lookupd, with a disk or without
	storeMiB int
	rng      *rand.Rand
	lookupd  *process
	workers  []*process
	loaders  []*process

	total loadAnswer // sums
	times []time.Duration
}

func startKilling(t *testing.T, what string, storeMiB int, seed uint64) *killing {
	k := &killing{t: t, dir: shortDir(t), what: what, storeMiB: storeMiB, rng: rand.New(rand.NewPCG(seed, 1))}
	k.workers = []*process{k.startWorker(0), k.startWorker(1)}
	k.restart()
	until(t, "memory is allocated", func() bool {
		s, err := LookupdStatus(t.Context(), k.dir)
		return err == nil && s.Store.CapacityBytes == uint64(storeMiB)<<20
	})
	for i := range 2 {
		k.loaders = append(k.loaders, spawn(t, fmt.Sprintf("loader:%s:%d", k.dir, i)))
	}
	k.all("ready")
	return k
}

func (k *killing) startWorker(n int) *process {
	return spawn(k.t, fmt.Sprintf("worker:%s:%d", k.dir, n))
}

// restart starts lookupd and waits until it has its sockets.
func (k *killing) restart() {
	k.lookupd = spawn(k.t, fmt.Sprintf("%s:%s:%d", k.what, k.dir, k.storeMiB))
	until(k.t, "lookupd answers", func() bool { _, err := LookupdStatus(k.t.Context(), k.dir); return err == nil })
}

// keep waits until both workers have the segment: with one of them killed beside
// lookupd, the other is to have it.
func (k *killing) keep() {
	k.t.Helper()
	for n := range k.workers {
		until(k.t, fmt.Sprintf("worker %d has its store", n), func() bool {
			s, err := WorkerStatus(k.t.Context(), k.dir, fmt.Sprintf("%s-%d", kindHost, n))
			return err == nil && s.StoreReady
		})
	}
}

// all gives every loader a command and returns their answers.
func (k *killing) all(command string) []loadAnswer {
	k.t.Helper()
	out := make([]loadAnswer, len(k.loaders))
	for _, l := range k.loaders {
		l.say(command)
	}
	for i, l := range k.loaders {
		out[i] = l.hear(command)
		k.total.Calls += out[i].Calls
		k.total.Lost += out[i].Lost
	}
	return out
}

// run has the loaders make load for a time of chance.
func (k *killing) run() {
	k.all("run")
	pause := time.NewTimer(time.Duration(5+k.rng.IntN(80)) * time.Millisecond)
	<-pause.C // the kill is to come at any instant
}

// stop ends what run began, and waits for that: a call that a loader made when
// lookupd is there again would be known to nobody.
func (k *killing) stop() { k.all("stop") }

// round kills lookupd once: with places granted and half written, or at any
// instant of the load. It returns how many chunks were active, if that is
// known.
func (k *killing) round(held bool) (active int) {
	k.keep()
	k.run()
	if held {
		k.stop()
		for _, a := range k.all("hold") {
			k.total.Held += a.Held
		}
	}
	var status *Status
	until(k.t, "lookupd says what it has", func() bool {
		var err error
		status, err = LookupdStatus(k.t.Context(), k.dir)
		return err == nil
	})
	began := time.Now()
	k.lookupd.kill()
	if !held {
		k.stop()
	}
	k.disturb()
	k.restart()
	k.all("ready")
	k.times = append(k.times, time.Since(began))
	for _, a := range k.all("finish") {
		k.total.Published += a.Published
	}
	return int(status.Store.Chunks)
}

// disturb now and then kills a worker as well, or a loader.
func (k *killing) disturb() {
	n := k.rng.IntN(2)
	switch k.rng.IntN(12) {
	case 0:
		k.workers[n].kill()
		k.workers[n] = k.startWorker(n)
	case 1:
		k.loaders[n].kill()
		k.loaders[n] = spawn(k.t, fmt.Sprintf("loader:%s:%d", k.dir, n))
	}
}

// verify has all chunks looked at, and adds up what was found.
func (k *killing) verify() (hits int, prefixes []int) {
	for _, a := range k.all("verify") {
		k.total.Stored += a.Stored
		k.total.Here += a.Here
		k.total.Wrong += a.Wrong
		k.total.Corrupt += a.Corrupt
		k.total.Revived += a.Revived
		k.total.Hits += a.Hits
		hits += a.Hits
		prefixes = append(prefixes, a.Prefix)
	}
	return hits, prefixes
}

// lookups asks as an engine does, of what length the loaders' chains are.
func (k *killing) lookups(prefixes []int) {
	t := k.t
	conn, registered := k.engine()
	defer conn.Close()
	transport, err := zmqx.New()
	if err != nil {
		t.Fatal(err)
	}
	c, err := transport.Dial(registered.LookupPath)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(c.Close(), transport.Close()); err != nil {
			t.Error(err)
		}
	}()
	for loader, want := range prefixes {
		var blob []byte
		for n := range loadKinds[0].chunks {
			hash := loadHash(loader, 0, n)
			blob = append(blob, hash[:]...)
		}
		reply, err := c.Request(patience, wire.EncodeLookup2(100_000, len(blob)/loadKinds[0].chunks, blob, "r", uint64(loader)+1)...)
		if err != nil {
			t.Fatal(err)
		}
		tokens, _, err := wire.ParseHit(reply[0])
		if err != nil {
			t.Fatal(err)
		}
		if tokens != want*spec().HashBlockTokens {
			t.Errorf("an engine's lookup hits %d tokens of loader %d; it has loaded %d chunks of the chain", tokens, loader, want)
		}
	}
}

// engine registers one for the first kind of chunks.
func (k *killing) engine() (*unixmsg.Conn, *connector.Registered) {
	conn, err := unixmsg.Dial(k.t.Context(), filepath.Join(k.dir, config.LookupdSocket), nil)
	if err != nil {
		k.t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		k.t.Fatal(err)
	}
	frames := connector.NewFrameReader(conn)
	if _, err := greet(conn, frames, connector.RoleSchedulerShim); err != nil {
		k.t.Fatal(err)
	}
	hello := &connector.Engine{Type: connector.TypeEngine, Namespace: *loadKinds[0].spec(), LookupPath: filepath.Join(k.dir, "lookup"), LookupEngine: "e"}
	if err := say(conn, hello); err != nil {
		k.t.Fatal(err)
	}
	registered, err := connector.Receive[connector.Registered](frames)
	if err != nil {
		k.t.Fatal(err)
	}
	return conn, registered
}

// report prints the sums and checks what holds in any case.
func (k *killing) report(rounds int) {
	slices.Sort(k.times)
	a := &k.total
	k.t.Logf("%d kills, after %d calls, with %d places granted and not ended; back after %v (median), %v (longest)",
		rounds, a.Calls, a.Held, k.times[len(k.times)/2].Round(time.Millisecond), k.times[len(k.times)-1].Round(time.Millisecond))
	k.t.Logf("afterwards %d hits were loaded and compared: %d wrong, %d corrupt", a.Hits, a.Wrong, a.Corrupt)
	if a.Wrong+a.Corrupt > 0 {
		k.t.Errorf("%d hits with wrong bytes, %d that do not fit their checksum", a.Wrong, a.Corrupt)
	}
	// With a disk a chunk that had no room in memory just then may be there later.
	if a.Revived > 0 && k.what == "lookupd" {
		k.t.Errorf("%d hits had been dropped", a.Revived)
	}
	if a.Published > 0 {
		k.t.Errorf("%d puts of a dead lookupd were published by the next one", a.Published)
	}
	if a.Calls < 10*rounds || a.Held < rounds || a.Hits < 100*rounds {
		k.t.Errorf("too little load: %+v", *a)
	}
}

// TestKilledUnderLoad kills lookupd over and over, at random instants of a mixed
// load and between the start and the end of puts. Whatever is a hit afterwards
// has the right bytes, and nearly all that was there still is.
func TestKilledUnderLoad(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	third := *kills / 3
	t.Run("room for all", func(t *testing.T) {
		k := startKilling(t, "lookupd", 64, seed)
		for i := range third {
			k.round(i%2 == 0)
			_, prefixes := k.verify()
			k.lookups(prefixes)
			if t.Failed() {
				break
			}
		}
		k.report(third)
		t.Logf("%d chunks were known to be stored, %d are hits", k.total.Stored, k.total.Here)
		if a := &k.total; a.Here*100 < a.Stored*99 || a.Lost > 0 {
			t.Errorf("%d of %d chunks are hits after the kills; %d were lost between them", a.Here, a.Stored, a.Lost)
		}
	})
	t.Run("full", func(t *testing.T) {
		k := startKilling(t, "lookupd", 8, seed)
		active, hits := 0, 0
		for i := range third {
			held := i%2 == 0
			before := k.round(held)
			now, prefixes := k.verify()
			k.lookups(prefixes)
			active, hits = active+before, hits+now
			if held && now*100 < before*99 {
				t.Errorf("%d chunks were active, %d are hits", before, now)
			}
			if t.Failed() {
				break
			}
		}
		k.report(third)
		t.Logf("%d chunks were active a moment before the kills, %d are hits", active, hits)
		if hits*100 < active*99 {
			t.Errorf("%d chunks were active, %d are hits", active, hits)
		}
	})
	t.Run("full, with a disk", func(t *testing.T) {
		k := startKilling(t, "lookupd-with-disk", 8, seed)
		active, hits := 0, 0
		for i := range *kills - 2*third {
			before := k.round(i%2 == 0)
			now, _ := k.verify()
			active, hits = active+before, hits+now
			if t.Failed() {
				break
			}
		}
		k.report(*kills - 2*third)
		t.Logf("%d chunks were active in memory a moment before the kills, %d are hits", active, hits)
		if hits <= active {
			t.Errorf("%d chunks were active in memory, %d are hits: the disk has brought nothing", active, hits)
		}
	})
}
