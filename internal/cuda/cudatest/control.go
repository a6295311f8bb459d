package cudatest

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/internal/shm"
)

//go:embed testdata/double.c
var source []byte

// Compile returns the path of the double's library, which it builds unless that
// was done before. Defines are WITHOUT_CHUNKS and WITHOUT_BATCH, for older drivers.
func Compile(t testing.TB, defines ...string) (path string) {
	t.Helper()
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	arguments := []string{"-x", "c", "-", "-shared", "-fPIC", "-O1", "-Wall", "-Wl,-z,now", "-Wl,-soname,libcuda.so.1", "-lpthread"}
	for _, define := range defines {
		arguments = append(arguments, "-D"+define)
	}
	digest := sha256.Sum256(fmt.Appendf(nil, "%s %q %s", compiler, arguments, source))
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = t.TempDir()
	}
	dir = filepath.Join(dir, "mooncake-sidecar-tests")
	path = filepath.Join(dir, fmt.Sprintf("cuda-double-%x.so", digest[:8]))
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	made := filepath.Join(t.TempDir(), "double.so")
	build := exec.Command(compiler, append(arguments, "-o", made)...)
	build.Stdin = bytes.NewReader(source)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("compile the double of the CUDA driver: %v: %s", err, out)
	}
	// Another test may do the same at this moment: it is there whole, or not at all.
	code, err := os.ReadFile(made)
	if err == nil {
		part := fmt.Sprintf("%s.%d", path, os.Getpid())
		if err = os.WriteFile(part, code, 0o700); err == nil {
			err = os.Rename(part, path)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Word numbers a word of the control page.
type Word int

// The words, in double.c's order.
const (
	gate Word = iota
	atGate
	faultCode
	faultAfter
	faultStays
	Lost      // the error that the context is lost with
	AfterLoss // calls that ask for something after that
	Devices   // beside the one
	dirtyFrom
	dirtyTo
	violations
	Contexts
	Streams
	Events
	ForeignEvents
	Mappings
	Chunks
	Registered
	RegisteredBytes
	HostAllocs
	Allocs
	Modules
	Launches
	Batches
	Copies
	MovedBytes
	Records       // of events, carried out by streams
	LargestLaunch // threads of it
)

const (
	pageBytes   = 4096
	faultCallAt = 2048
	violationAt = 2560
)

// Double is a driver of its own for one test.
type Double struct {
	// Path is the library's, Control the control page's.
	Path, Control string
	t             testing.TB
	page          *shm.Mapping
	words         []atomic.Uint64
	// tolerant: the test looks at violations itself.
	tolerant bool
}

// New makes a double of a compiled library. What is loaded from Path until the end
// of the test is this double.
func New(t testing.TB, library string) *Double {
	t.Helper()
	d := &Double{t: t, Path: filepath.Join(t.TempDir(), "libcuda.so.1")}
	code, err := os.ReadFile(library)
	if err == nil {
		err = os.WriteFile(d.Path, code, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	fd := memfd(t, "cuda-double-control", pageBytes)
	d.Control = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
	if d.page, err = shm.Map(fd, pageBytes); err != nil {
		t.Fatal(err)
	}
	d.words = shm.Words(d.page.Data())
	if setter, ok := t.(interface{ Setenv(key, value string) }); ok {
		setter.Setenv("CUDA_DOUBLE_CONTROL", d.Control)
	}
	// The page stays mapped: the library does, too, and its threads look at it.
	t.Cleanup(func() {
		d.Open()
		if n, first := d.Violations(); n > 0 && !d.tolerant {
			t.Errorf("the CUDA double found %d faults; the first: %s", n, first)
		}
	})
	return d
}

// memfd makes a sealed memory file that lives until the test has ended.
func memfd(t testing.TB, name string, bytes uint64) int {
	t.Helper()
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, int64(bytes)); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, shm.Seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

// Get reads a word.
func (d *Double) Get(w Word) uint64 { return d.words[w].Load() }

// Set writes a word.
func (d *Double) Set(w Word, value uint64) { d.words[w].Store(value) }

// Shut makes streams stop before their next copy or kernel.
func (d *Double) Shut() { d.words[gate].Store(1) }

// Open ends Shut.
func (d *Double) Open() { d.words[gate].Store(0) }

// AwaitShut waits until a stream has stopped before a copy or kernel.
func (d *Double) AwaitShut() { d.Await(func() bool { return d.words[atGate].Load() > 0 }) }

// Await waits until something is so. It never is in a test that fails.
func (d *Double) Await(so func() bool) {
	d.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !so(); time.Sleep(200 * time.Microsecond) {
		if time.Now().After(deadline) {
			d.t.Fatal("it did not come to pass")
		}
	}
}

// Fail makes a call answer with a code, after so many that are as ever; stays:
// every time, else once.
func (d *Double) Fail(call string, code int, after int, stays bool) {
	text := d.page.Data()[faultCallAt:violationAt]
	text[copy(text, call)] = 0
	d.words[faultAfter].Store(uint64(after))
	d.words[faultStays].Store(map[bool]uint64{true: 1}[stays])
	d.words[faultCode].Store(uint64(code)) // last: it is what the double looks at first
}

// Heal ends Fail.
func (d *Double) Heal() { d.words[faultCode].Store(0) }

// Dirty says that the engine still writes bytes of its memory, from and to in each
// allocation; equal: none any more.
func (d *Double) Dirty(from, to uint64) {
	d.words[dirtyFrom].Store(from)
	d.words[dirtyTo].Store(to)
}

// Violations returns how often the double was misused, and how first.
func (d *Double) Violations() (n uint64, first string) {
	text, _, _ := bytes.Cut(d.page.Data()[violationAt:], []byte{0})
	return d.words[violations].Load(), string(text)
}

// Tolerate makes violations the test's own business.
func (d *Double) Tolerate() { d.tolerant = true }

// Empty reports an error for everything that was not given back.
func (d *Double) Empty() {
	d.t.Helper()
	for w := Contexts; w <= Modules; w++ {
		if n := d.Get(w); n != 0 {
			d.t.Errorf("word %d: %d are left", w, n)
		}
	}
}
