//go:build cgo && linux && (amd64 || arm64)

package daemon

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/cuda"
	"github.com/mooncake-sidecar/sidecar/internal/cuda/cudatest"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/internal/unixmsg"
)

const (
	gpuBlocks = 8
	gpuSlots  = 16
	gpuShard  = 4096
)

// gpuEngine is a registered rank whose KV cache is in a GPU's memory.
type gpuEngine struct {
	t          *testing.T
	conn       *unixmsg.Conn
	frames     *connector.FrameReader
	kv         []byte
	event      *cudatest.Event
	board      *shm.JobBoard
	generation uint64
}

func (e *gpuEngine) send(msg any, fds ...int) {
	e.t.Helper()
	frame, err := connector.AppendFrame(nil, msg)
	if err == nil {
		err = e.conn.WriteFDs(frame, fds)
	}
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *gpuEngine) receive() any {
	e.t.Helper()
	frame, err := e.frames.Next()
	if err != nil {
		e.t.Fatal(err)
	}
	msg, err := connector.Decode(frame)
	if err != nil {
		e.t.Fatal(err)
	}
	return msg
}

// gpuTokens are in an engine's blocks, but for the null block.
const gpuTokens = 16 * (gpuBlocks - 1)

// gpuTables are those blocks' ids and hashes.
func gpuTables() (blocks, hashes []byte) {
	hashes = make([]byte, 16*(gpuBlocks-1))
	for id := uint32(1); id < gpuBlocks; id++ {
		blocks = binary.LittleEndian.AppendUint32(blocks, id)
		hashes[16*(id-1)] = byte(id)
	}
	return blocks, hashes
}

// store sends a job that stores all blocks.
func (e *gpuEngine) store(job uint64) {
	e.t.Helper()
	blocks, hashes := gpuTables()
	e.board.SetWord(int(job%gpuSlots), job)
	e.send(&connector.StoreBatch{Type: connector.TypeStore, Job: job, Epoch: 1, Generation: e.generation, Event: -1, Parts: []connector.StoreJob{{
		Request: "r", TokenLen: gpuTokens, CompletedTokens: gpuTokens, PromptTokens: gpuTokens, PrefillEnd: gpuTokens, HashLen: 16, Hashes: hashes, Blocks: [][]byte{blocks},
	}}})
}

// load sends a job that loads them.
func (e *gpuEngine) load(job uint64) {
	e.t.Helper()
	blocks, hashes := gpuTables()
	e.board.SetWord(int(job%gpuSlots), job)
	e.send(&connector.LoadJob{Type: connector.TypeLoad, Job: job, Epoch: 1, Request: "l", TokenLen: gpuTokens, HashLen: 16, Hashes: hashes, Blocks: [][]byte{blocks}})
}

// result receives a job's end, which must be a success.
func (e *gpuEngine) result(job uint64) {
	e.t.Helper()
	r, ok := e.receive().(*connector.Result)
	if !ok || r.Job != job || r.Status != connector.StatusOK || r.Chunks != gpuBlocks-1 || len(r.Failed) != 0 {
		e.t.Fatalf("%+v", r)
	}
}

func newGPUEngine(t *testing.T, dir string) *gpuEngine {
	t.Helper()
	conn, err := unixmsg.Dial(t.Context(), filepath.Join(dir, config.WorkerSocket("cuda-0")), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	e := &gpuEngine{t: t, conn: conn, frames: connector.NewFrameReader(conn), event: cudatest.NewEvent(t)}
	var handle cuda.Handle
	e.kv, handle = cudatest.NewMemory(t, gpuBlocks*gpuShard)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(e.kv)
	fd, err := shm.Create(context.Background(), "board", gpuSlots*8)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if e.board, err = shm.MapJobBoard(fd, gpuSlots); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.board.Close() })
	e.send(&connector.Hello{Type: connector.TypeHello, Protocol: connector.ProtocolVersion, Role: connector.RoleWorkerShim, PID: os.Getpid(), Epoch: 1})
	e.receive()
	half := uint64(gpuShard / 2)
	e.send(&connector.Register{
		Type: connector.TypeRegister, FDs: 1, Namespace: *spec(), Device: "cuda", NumBlocks: gpuBlocks, ShardByGroup: []int{0},
		PutStride: []int{1}, PutPhase: []int{0}, JobSlots: gpuSlots, LookupEngine: "gpu", Verify: true,
		DeviceUUID: append(bytes.Repeat([]byte{0xd0}, 15), 0), Events: [][]byte{e.event.Handle[:]},
		Regions:  []connector.KVRegion{{Kind: "cuda_ipc", Bytes: gpuBlocks * gpuShard, Handle: handle[:]}},
		Segments: []connector.KVSegment{{BlockStride: half, Bytes: half}, {Offset: gpuBlocks * half, BlockStride: half, Bytes: half}},
	}, fd)
	registered, ok := e.receive().(*connector.Registered)
	if !ok {
		t.Fatalf("%+v", registered)
	}
	e.generation = registered.Generation
	return e
}

// TestAWorkerOfAGPU is the whole of it over the driver's double: an engine's blocks
// are stored when its event has happened, and loaded, by daemons as they run.
func TestAWorkerOfAGPU(t *testing.T) {
	double := cudatest.New(t, cudatest.Compile(t))
	if _, err := cuda.Open(double.Path); err != nil { // the daemon finds it by its name
		t.Fatal(err)
	}
	dir := shortDir(t)
	startLookupd(t, dir)
	cfg := &config.WorkerConfig{Device: "cuda-0"}
	cfg.RuntimeDir = dir
	cfg.SetDefaults()
	start(t, func(ctx context.Context) error { return RunWorker(ctx, cfg, Control{}, quiet) })
	until(t, "the worker has its store", func() bool {
		status, err := WorkerStatus(t.Context(), dir, "cuda-0")
		return err == nil && status.StoreReady
	})
	e := newGPUEngine(t, dir)
	until(t, "the store's memory is registered", func() bool { return double.Get(cudatest.Registered) == 1 })

	// The engine's step is under way: nothing may be read yet.
	e.event.Record()
	double.Dirty(0, gpuBlocks*gpuShard)
	e.send(&connector.After{Type: connector.TypeAfter, Event: 0})
	e.store(1)
	e.send(&connector.Ping{Type: connector.TypePing, Seq: 5})
	if pong, ok := e.receive().(*connector.Pong); !ok || pong.Seq != 5 {
		t.Fatalf("%+v comes before the engine's event", pong)
	}
	_, _ = rand.NewChaCha8([32]byte{8}).Read(e.kv) // the step's end
	want := bytes.Clone(e.kv)
	double.Dirty(0, 0)
	e.event.Complete()
	e.result(1)

	clear(e.kv)
	e.load(2)
	e.result(2)
	half := gpuShard / 2
	for _, from := range []int{half, (gpuBlocks + 1) * half} { // but for the null block
		if to := from + (gpuBlocks-1)*half; !bytes.Equal(e.kv[from:to], want[from:to]) {
			t.Errorf("bytes %d to %d differ", from, to)
		}
	}
	e.conn.Close()
	until(t, "the engine's memory is unmapped", func() bool { return double.Get(cudatest.Contexts) == 0 })
	double.Empty()
}

func isResult(msg any) bool {
	_, is := msg.(*connector.Result)
	return is
}

// TestAGPUThatDoesNotSay: where nobody can tell whether the GPU still copies, the
// engine is told of no job's end, and the worker dies although its sessions can't
// be closed.
func TestAGPUThatDoesNotSay(t *testing.T) {
	double := cudatest.New(t, cudatest.Compile(t))
	t.Setenv("LD_LIBRARY_PATH", filepath.Dir(double.Path))
	dir := shortDir(t)
	startLookupd(t, dir)
	worker := spawn(t, "gpu-worker:"+dir)
	until(t, "the worker has its store", func() bool {
		status, err := WorkerStatus(t.Context(), dir, "cuda-0")
		return err == nil && status.StoreReady
	})
	e := newGPUEngine(t, dir)
	double.Fail("cuEventSynchronize", 999, 0, true)
	e.store(1)
	late := time.AfterFunc(patience, func() { _ = worker.command.Process.Signal(syscall.SIGABRT) })
	defer late.Stop()
	for {
		frame, err := e.frames.Next()
		if err != nil {
			break // it is dead
		}
		if msg, err := connector.Decode(frame); err != nil || isResult(msg) {
			t.Errorf("the worker says %+v, %v", msg, err)
		}
	}
	_ = worker.command.Wait() // its state says how it ended
	if status, ok := worker.command.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Errorf("the worker ended with %v", worker.command.ProcessState)
	}
	worker.command = nil
}
