package indexer

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// run runs an indexer, and has it end with its last snapshot.
func run(t *testing.T, x *Indexer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- x.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// An indexer that is started anew goes on where the other one has ended, with what each
// engine has told meanwhile, and forgets those that are others by now.
func TestWarmRestart(t *testing.T) {
	transport := newTransport(t)
	dir := t.TempDir()
	opts := options(transport)
	opts.Keep = Keeping{Dir: dir, Interval: time.Hour}
	x := Open(t.Context(), opts)
	stop := run(t, x)
	same, changes := ipcEndpoints(t), ipcEndpoints(t)
	stays, goes := newEngine(t, transport, same), newEngine(t, transport, changes)
	for range 5 {
		stays.lose(stored(1, 2), stored(1, 2))
		goes.lose(stored(1, 2))
	}
	register(t, x, serviceAt(same, "stays", 0))
	register(t, x, serviceAt(changes, "goes", 0))
	expect(t, x, ask(1, 2, 3), row{"goes", 0, 4, 4, contract.Complete, false}, row{"stays", 0, 4, 4, contract.Complete, false})
	stop()

	goes.close()
	other := newEngine(t, transport, changes)
	for range 7 {
		other.lose(stored(1))
	}
	stays.lose(removed(2), stored(1, 2, 3))
	before := len(stays.replayed())
	x = Open(t.Context(), opts)
	stop = run(t, x)
	expect(t, x, ask(1, 2, 3), row{"goes", 0, 2, 2, contract.Complete, false}, row{"stays", 0, 6, 6, contract.Complete, false})
	if asked := stays.replayed()[before:]; asked[0] != 4 {
		t.Errorf("asked %v, not for what was applied last and what came then", asked)
	}
	// The copies are counted as before: ten, one of block 2 gone, one more of each.
	stays.lose(removed(1, 1, 1, 1, 1, 1, 1, 1, 1, 1))
	eventually(t, x, func() bool { // until the subscription is in force
		stays.tell(stored(9))
		return x.Services()[1].Next > 6
	})
	expect(t, x, ask(1, 2, 3), row{"goes", 0, 2, 2, contract.Complete, false}, row{"stays", 0, 6, 6, contract.Complete, false})
	stays.lose(removed(1))
	stays.tell()
	eventually(t, x, func() bool { return rowsOf(x, ask(1, 2, 3))[1].All == 0 })
	stop()
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 || files[0].Name() != SnapshotFile {
		t.Errorf("%v, %v", files, err)
	}
}

// What one that was killed has left of a snapshot is removed, and who writes one keeps nobody
// from asking who there is.
func TestWhatIsLeft(t *testing.T) {
	opts := options(newTransport(t))
	opts.Keep.Dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(opts.Keep.Dir, SnapshotFile+".123"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	x := Open(t.Context(), opts)
	t.Cleanup(x.Close)
	if files, err := os.ReadDir(opts.Keep.Dir); err != nil || len(files) != 0 {
		t.Errorf("%v, %v", files, err)
	}
	register(t, x, serviceAt(endpoints{"tcp://127.0.0.1:1", ""}, "a", 0))
	x.mu.Lock() // as a snapshot does
	defer x.mu.Unlock()
	if len(x.Services()) != 1 || x.Unready() != nil {
		t.Error(states(x))
	}
}

// Publishers that nobody finds after a restart: what they held is told of as long as nobody
// has answered, marked, and the index is not ready for a while.
func TestRestartWithoutEngines(t *testing.T) {
	transport := newTransport(t)
	opts := options(transport)
	opts.Keep.Dir = t.TempDir()
	x := Open(t.Context(), opts)
	stop := run(t, x)
	at := ipcEndpoints(t)
	e := newEngine(t, transport, at)
	e.lose(stored(1))
	register(t, x, serviceAt(at, "a", 0))
	expect(t, x, ask(1), row{"a", 0, 2, 2, contract.Complete, false})
	stop()
	e.close()
	x = Open(t.Context(), opts)
	if got := rowsOf(x, ask(1)); !slices.Equal(got, []row{{"a", 0, 2, 2, contract.Connecting, false}}) || len(x.Unready()) != 1 {
		t.Errorf("%+v, %q", got, x.Unready())
	}
	t.Setenv("TMPDIR", "/nonexistent") // a snapshot that is sent lies where the one of the end will
	var again bytes.Buffer             // before anybody has answered, what was read is passed on
	if err := x.Snapshot(t.Context(), &again); err != nil {
		t.Error(err)
	}
	second := newIndexer(t, options(transport))
	if err := second.Restore(t.Context(), &again, &Expected{}); err != nil {
		t.Error(err)
	}
	if got := rowsOf(second, ask(1)); !slices.Equal(got, []row{{"a", 0, 2, 2, contract.Connecting, false}}) {
		t.Errorf("%+v", got)
	}
	run(t, x)()
}

// A conductor that has no snapshot begins with a peer's, with its seed; one that must have
// another seed does not.
func TestPeers(t *testing.T) {
	transport := newTransport(t)
	first := newIndexer(t, options(transport))
	at := ipcEndpoints(t)
	newEngine(t, transport, at).lose(stored(1, 2))
	register(t, first, serviceAt(at, "a", 0))
	want := row{"a", 0, 4, 4, contract.Complete, false}
	expect(t, first, ask(1, 2), want)
	asked := make(chan string, 8)
	peer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		if err := first.Snapshot(r.Context(), w); err != nil {
			t.Error(err)
		}
	}))
	defer peer.Close()
	refuses := httptest.NewServer(http.NotFoundHandler())
	defer refuses.Close()
	opts := options(transport)
	opts.Keep = Keeping{Dir: t.TempDir(), Peers: []string{refuses.URL, "http://127.0.0.1:1", peer.URL}, Client: peer.Client()}
	second := Open(t.Context(), opts)
	defer second.Close()
	if second.seed != first.seed || <-asked != "/snapshot" {
		t.Error("it was not the peer's")
	}
	expect(t, second, ask(1, 2), want)
	opts.Seed, opts.HasSeed = first.seed+1, true
	third := Open(t.Context(), opts)
	defer third.Close()
	if len(third.Services()) != 0 || third.seed != first.seed+1 {
		t.Errorf("%+v", third.Services())
	}
}

// The configuration rules over a snapshot's services.
func TestRestoredServicesAndTheConfiguration(t *testing.T) {
	transport := newTransport(t)
	first := newIndexer(t, options(transport))
	for _, name := range []string{"removed", "changed", "kept"} {
		if _, err := first.RegisterAs(t.Context(), contract.Configured, serviceAt(ipcEndpoints(t), name, 0)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"taken", "called"} {
		register(t, first, serviceAt(ipcEndpoints(t), name, 0))
	}
	for _, name := range []string{"gone", "stays", "both"} {
		if _, err := first.RegisterAs(t.Context(), contract.Found, serviceAt(ipcEndpoints(t), name, 0)); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range first.Services() {
		if s.Instance == "both" { // of an engine that is no longer configured, but somebody wants it
			register(t, first, s.Service)
		}
	}
	var snapshot bytes.Buffer
	if err := first.Snapshot(t.Context(), &snapshot); err != nil {
		t.Fatal(err)
	}
	var kept contract.Service
	for _, s := range first.Services() {
		if s.Instance == "kept" {
			kept = s.Service
		}
	}
	static := []contract.Service{kept, serviceAt(ipcEndpoints(t), "changed", 0), serviceAt(ipcEndpoints(t), "taken", 0)}
	static[0].Tenant = "" // as it is written
	second := newIndexer(t, options(transport))
	if err := second.Restore(t.Context(), bytes.NewReader(snapshot.Bytes()), &Expected{Static: static, Engines: []string{"stays"}}); err != nil {
		t.Fatal(err)
	}
	for i, existed := range []bool{true, false, false} {
		if made, err := second.RegisterAs(t.Context(), contract.Configured, static[i]); err != nil || made.Existed != existed {
			t.Errorf("%s: %+v, %v", static[i].Instance, made, err)
		}
	}
	var names []string
	for _, s := range second.Services() {
		names = append(names, s.Instance)
		want := map[string]contract.Ways{"both": contract.Called, "called": contract.Called, "stays": contract.Found}[s.Instance]
		if want == 0 {
			want = contract.Configured
		}
		if s.Ways != want {
			t.Errorf("%s: %b, want %b", s.Instance, s.Ways, want)
		}
	}
	if got := strings.Join(names, " "); got != "both called changed kept stays taken" {
		t.Error(got)
	}
}

func TestDamagedSnapshot(t *testing.T) {
	transport := newTransport(t)
	first := newIndexer(t, options(transport))
	at := ipcEndpoints(t)
	newEngine(t, transport, at).lose(stored(1, 2), &kvevents.BlockStored{Hashes: []kvevents.Hash{7}, Medium: "CPU"})
	register(t, first, serviceAt(at, "a", 0))
	expect(t, first, ask(1, 2), row{"a", 0, 4, 4, contract.Complete, false})
	dir := t.TempDir()
	if err := first.Save(dir); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, SnapshotFile)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	damaged := slices.Clone(whole)
	damaged[len(damaged)/2] ^= 1
	for name, data := range map[string][]byte{"empty": nil, "short": whole[:len(whole)-9], "another": []byte("something else of some length"), "damaged": damaged} {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		opts := options(transport)
		opts.Keep.Dir = dir
		x := newIndexer(t, opts)
		if found, err := x.Load(t.Context(), dir, &Expected{}); !found || !errors.Is(err, ErrSnapshot) {
			t.Errorf("%s: %v, %v", name, found, err)
		}
		if len(x.Services()) != 0 || x.Stats().Blocks != 0 {
			t.Errorf("%s: %+v", name, x.Services())
		}
		register(t, x, serviceAt(at, "a", 0)) // all can be heard again
		expect(t, x, ask(1, 2), row{"a", 0, 4, 4, contract.Complete, false})
	}
	if err := first.Save(filepath.Join(dir, "nowhere")); err == nil {
		t.Error("a snapshot was written into a directory that is not there")
	}
}
