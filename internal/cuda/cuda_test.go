//go:build cgo && linux && (amd64 || arm64)

package cuda_test

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/internal/cuda"
	"github.com/mooncake-sidecar/sidecar/internal/cuda/cudatest"
)

// open returns a context of a fresh double.
func open(t *testing.T, defines ...string) (*cudatest.Double, *cuda.Driver, *cuda.Context) {
	t.Helper()
	double := cudatest.New(t, cudatest.Compile(t, defines...))
	driver, err := cuda.Open(double.Path)
	if err != nil {
		t.Fatal(err)
	}
	devices, err := driver.Devices()
	if err != nil || len(devices) != 1 || devices[0].Processors != 132 || devices[0].UUID[0] != 0xd0 || devices[0].Name != "Double 0" {
		t.Fatalf("%+v, %v", devices, err)
	}
	context, err := driver.Retain(devices[0])
	if err != nil {
		t.Fatal(err)
	}
	return double, driver, context
}

// must fails the test on an error.
func must[T any](t *testing.T) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func noError(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

func TestNoDriver(t *testing.T) {
	for _, path := range []string{filepath.Join(t.TempDir(), "none.so"), "libm.so.6"} {
		if _, err := cuda.Open(path); !errors.Is(err, cuda.ErrNoDriver) {
			t.Errorf("%s: %v, want ErrNoDriver", path, err)
		}
	}
}

func TestADriverWithoutDevices(t *testing.T) {
	double := cudatest.New(t, cudatest.Compile(t))
	double.Fail("cuInit", int(cuda.NoDevice), 0, true)
	_, err := cuda.Open(double.Path)
	if !errors.Is(err, cuda.ErrNoDriver) || !cuda.NoDevice.In(err) || !strings.Contains(err.Error(), "cuInit: CUDA_ERROR_NO_DEVICE (100)") {
		t.Errorf("%v", err)
	}
}

// TestCopies copies there and back in each way, between each kind of memory, from
// goroutines that share the context.
func TestCopies(t *testing.T) {
	for _, defines := range [][]string{nil, {"WITHOUT_BATCH", "WITHOUT_CHUNKS"}} {
		double, driver, context := open(t, defines...)
		if old := defines != nil; driver.CanBatch() == old || driver.CanMapChunks() == old {
			t.Errorf("%v: batch %v, chunks %v", defines, driver.CanBatch(), driver.CanMapChunks())
		}
		const size = 1 << 16
		kv, handle := cudatest.NewMemory(t, size)
		for i := range kv {
			kv[i] = byte(i * 7)
		}
		at := must[cuda.Address](t)(context.OpenMemory(handle))
		base, n, err := context.Range(at + 100)
		if err != nil || base != at || n != size {
			t.Errorf("range: %#x %d %v", base, n, err)
		}
		host := must[cuda.Host](t)(context.AllocHost(size))
		var running sync.WaitGroup
		for g := range 4 {
			running.Go(func() {
				stream, err := context.NewStream()
				event, err2 := context.NewEvent()
				from, part := cuda.Address(g*size/4), uint64(size/4)
				var copies cuda.Copies
				for k := range cuda.Address(2) {
					copies.Add(cuda.Piece{To: host.At + from + k*size/8, From: at + from + k*size/8, Bytes: part / 2})
				}
				noError(t, err, err2, context.Copy(&copies, stream), context.Record(event, stream), context.Await(event))
				if done, err := context.Done(event); !done || err != nil {
					t.Errorf("done %v, %v", done, err)
				}
				noError(t, context.DestroyEvent(event), context.DestroyStream(stream))
			})
		}
		running.Wait()
		if !bytes.Equal(host.Data, kv) {
			t.Errorf("%v: the bytes differ", defines)
		}
		if calls := double.Get(cudatest.Batches); (calls == 4) != (defines == nil) || double.Get(cudatest.Copies) != 8 {
			t.Errorf("%v: %d batches", defines, calls)
		}
		noError(t, context.FreeHost(host), context.CloseMemory(at), context.Release())
		double.Empty()
	}
}

func TestForeignEvents(t *testing.T) {
	double, _, context := open(t)
	engine := cudatest.NewEvent(t)
	event := must[cuda.Event](t)(context.OpenEvent(engine.Handle))
	for _, step := range []struct {
		do   func()
		done bool
	}{{func() {}, true}, {engine.Record, false}, {engine.Complete, true}, {engine.Record, false}, {engine.Record, false}, {engine.Complete, true}} {
		step.do()
		if done, err := context.Done(event); err != nil || done != step.done {
			t.Errorf("done %v, %v, want %v", done, err, step.done)
		}
	}
	if _, err := context.OpenEvent(cuda.Handle{1, 2, 3}); err == nil {
		t.Error("an event was opened that there is not")
	}
	noError(t, context.DestroyEvent(event), context.Release())
	double.Empty()
}

func TestChunks(t *testing.T) {
	double, _, context := open(t)
	sizes := []uint64{1 << 16, 1 << 12, 1 << 14}
	var fds []int
	var whole []byte
	for i, size := range sizes {
		data, fd := cudatest.NewChunk(t, size)
		for k := range data {
			data[k] = byte(k>>8 + i)
		}
		fds, whole = append(fds, fd), append(whole, data...)
	}
	at := must[cuda.Address](t)(context.MapChunks(fds, sizes))
	host := must[cuda.Host](t)(context.AllocHost(len(whole)))
	stream, event := must[cuda.Stream](t)(context.NewStream()), must[cuda.Event](t)(context.NewEvent())
	var copies cuda.Copies
	copies.Add(cuda.Piece{To: host.At, From: at, Bytes: uint64(len(whole))})
	noError(t, context.Copy(&copies, stream), context.Record(event, stream), context.Await(event))
	if !bytes.Equal(host.Data, whole) {
		t.Error("the bytes differ")
	}
	noError(t, context.UnmapChunks(at, sizes))
	// Each step may fail, and leaves nothing behind.
	for _, call := range []string{"cuMemAddressReserve", "cuMemImportFromShareableHandle", "cuMemMap", "cuMemRelease", "cuMemSetAccess"} {
		for after := range 2 {
			double.Fail(call, int(cuda.OutOfMemory), after, false)
			at, err := context.MapChunks(fds, sizes)
			if single := call == "cuMemAddressReserve" || call == "cuMemSetAccess"; single && after == 1 {
				noError(t, err, context.UnmapChunks(at, sizes))
				double.Heal()
			} else if !cuda.OutOfMemory.In(err) {
				t.Errorf("%s: %v", call, err)
			}
			if n := double.Get(cudatest.Chunks); n != 0 {
				t.Errorf("%s: %d chunks are mapped", call, n)
			}
		}
	}
	if _, err := context.MapChunks(fds, []uint64{1 << 16, 1 << 12, 1 << 15}); err == nil {
		t.Error("a chunk was taken for a longer one")
	}
	noError(t, context.FreeHost(host), context.DestroyEvent(event), context.DestroyStream(stream), context.Release())
	double.Empty()
}

func TestRegisteredMemory(t *testing.T) {
	double, _, context := open(t)
	memory, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	noError(t, err)
	host := must[cuda.Host](t)(context.Register(memory[1<<12 : 1<<14]))
	if _, err := context.Register(memory[:1<<13]); !cuda.AlreadyRegistered.In(err) {
		t.Errorf("%v", err)
	}
	double.Fail("cuMemHostGetDevicePointer_v2", int(cuda.InvalidValue), 0, false)
	if _, err := context.Register(memory[1<<15:]); !cuda.InvalidValue.In(err) {
		t.Errorf("%v", err)
	}
	if n := double.Get(cudatest.RegisteredBytes); n != 1<<14-1<<12 {
		t.Errorf("%d bytes are registered", n)
	}
	noError(t, context.Unregister(host), context.Release(), unix.Munmap(memory))
	double.Empty()
}

func TestLostContext(t *testing.T) {
	double, _, context := open(t)
	stream := must[cuda.Stream](t)(context.NewStream())
	for code, lost := range map[cuda.Code]bool{cuda.OutOfMemory: false, cuda.IllegalAddress: true, cuda.LaunchFailed: true, cuda.Contained: true, cuda.MPSTerminated: true, cuda.InvalidValue: false} {
		double.Fail("cuMemAlloc_v2", int(code), 0, false)
		_, err := context.Alloc(10)
		if cuda.Lost(fmt.Errorf("wrapped: %w", err)) != lost || !code.In(err) {
			t.Errorf("%v: lost %v", err, !lost)
		}
	}
	double.Set(cudatest.Lost, uint64(cuda.IllegalAddress))
	if _, err := context.NewEvent(); !cuda.Lost(err) {
		t.Errorf("%v", err)
	}
	noError(t, context.DestroyStream(stream), context.Release())
}

func TestMisuseIsSeen(t *testing.T) {
	for name, misuse := range map[string]func(double *cudatest.Double, context *cuda.Context){
		"twice": func(_ *cudatest.Double, context *cuda.Context) {
			_, handle := cudatest.NewMemory(t, 4096)
			at := must[cuda.Address](t)(context.OpenMemory(handle))
			if _, err := context.OpenMemory(handle); !cuda.AlreadyMapped.In(err) {
				t.Errorf("%v", err)
			}
			noError(t, context.CloseMemory(at), context.Release())
		},
		"a mapping left": func(_ *cudatest.Double, context *cuda.Context) {
			_, handle := cudatest.NewMemory(t, 4096)
			must[cuda.Address](t)(context.OpenMemory(handle))
			noError(t, context.Release())
		},
		"a stranger's memory": func(_ *cudatest.Double, context *cuda.Context) {
			_, handle := cudatest.NewMemory(t, 4096)
			at := must[cuda.Address](t)(context.OpenMemory(handle))
			host := must[cuda.Host](t)(context.AllocHost(8192))
			stream, event := must[cuda.Stream](t)(context.NewStream()), must[cuda.Event](t)(context.NewEvent())
			var copies cuda.Copies
			copies.Add(cuda.Piece{To: host.At, From: at, Bytes: 4097})
			noError(t, context.Copy(&copies, stream))
			if err := context.Record(event, stream); err == nil { // else it is noticed already
				err = context.Await(event)
				if !cuda.Lost(err) {
					t.Errorf("%v", err)
				}
			}
		},
		"too early": func(double *cudatest.Double, context *cuda.Context) {
			_, handle := cudatest.NewMemory(t, 4096)
			at := must[cuda.Address](t)(context.OpenMemory(handle))
			host := must[cuda.Host](t)(context.AllocHost(8192))
			stream, event := must[cuda.Stream](t)(context.NewStream()), must[cuda.Event](t)(context.NewEvent())
			double.Dirty(100, 200)
			var copies cuda.Copies
			copies.Add(cuda.Piece{To: host.At, From: at, Bytes: 128})
			noError(t, context.Copy(&copies, stream), context.Record(event, stream), context.Await(event))
		},
	} {
		double, _, context := open(t)
		double.Tolerate()
		misuse(double, context)
		if n, first := double.Violations(); n == 0 {
			t.Errorf("%s: not seen", name)
		} else {
			t.Logf("%s: %s", name, first)
		}
	}
}
