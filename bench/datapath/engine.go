package datapath

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/internal/unixmsg"
)

const (
	jobSlots   = 64
	kvAreas    = 8 // of the size of a load each; the first is stored from, the second loaded into
	hashBytes  = 32
	engineName = "datapath"
	// storeWait is how long a worker may take to listen and to reach its store, on a busy
	// machine.
	storeWait = time.Minute
)

// engine is a rank of a vLLM engine as the worker sees it.
type engine struct {
	g      geometry
	verify bool
	conn   *unixmsg.Conn
	frames *connector.FrameReader
	kv     *shm.Segment
	board  *shm.JobBoard
	job    uint64
	// generation is the namespace's.
	generation uint64
	// storeReady: the worker had its store when the engine registered, and knew the
	// generation.
	storeReady bool
}

// readyEngine registers until the worker, which is just up, has its store: before
// that it can't say the namespace's generation.
func readyEngine(ctx context.Context, dir string, g geometry, verify bool) (*engine, error) {
	for deadline := time.Now().Add(storeWait); ; time.Sleep(10 * time.Millisecond) {
		e, err := newEngine(ctx, dir, g, verify)
		if err != nil || e.storeReady {
			return e, err
		}
		e.close()
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("the worker has no store after %v", storeWait)
		}
	}
}

func newEngine(ctx context.Context, dir string, g geometry, verify bool) (_ *engine, err error) {
	e := &engine{g: g, verify: verify}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	blocks := 1 + kvAreas*g.blocks() // block 0 is the null block
	size := uint64(blocks * g.shardBytes())
	if e.kv, err = readyMemory("datapath-kv", size); err != nil {
		return nil, err
	}
	boardFD, err := shm.Create(ctx, "datapath-board", jobSlots*8)
	if err != nil {
		return nil, err
	}
	defer unix.Close(boardFD)
	if e.board, err = shm.MapJobBoard(boardFD, jobSlots); err != nil {
		return nil, err
	}
	// The socket's file is there a moment before it listens.
	for deadline := time.Now().Add(storeWait); ; time.Sleep(time.Millisecond) {
		if e.conn, err = unixmsg.Dial(ctx, filepath.Join(dir, "worker-host-0.sock"), nil); err == nil {
			break
		}
		if time.Now().After(deadline) {
			return nil, err
		}
	}
	e.frames = connector.NewFrameReader(e.conn)
	if err := e.send(&connector.Hello{
		Type: connector.TypeHello, Protocol: connector.ProtocolVersion, Role: connector.RoleWorkerShim, PID: os.Getpid(), Epoch: 1,
	}); err != nil {
		return nil, err
	}
	if _, err := receive[*connector.Welcome](e); err != nil {
		return nil, err
	}
	if err := e.send(e.registration(blocks), e.kv.FD(), boardFD); err != nil {
		return nil, err
	}
	registered, err := receive[*connector.Registered](e)
	if err != nil {
		return nil, err
	}
	// A store that came while the worker answered is there, without the generation.
	e.generation, e.storeReady = registered.Generation, registered.StoreReady && registered.Generation != 0
	return e, nil
}

// registration describes the KV cache: a layer after the other, in each a piece
// of every block.
func (e *engine) registration(blocks int) *connector.Register {
	piece := uint64(e.g.shardBytes() / e.g.Layers)
	reg := &connector.Register{
		Type: connector.TypeRegister, FDs: 2, Device: "host", NumBlocks: blocks,
		Namespace: kv.NamespaceSpec{
			Model: "datapath", Dtype: "bfloat16", Layout: "datapath", HashAlgorithm: "sha256", HashBytes: hashBytes,
			HashBlockTokens: e.g.BlockTokens, SchedulerBlockTokens: e.g.BlockTokens, RetentionTokens: -1, TP: 1, PP: 1, PCP: 1, DCP: 1,
			Groups: []kv.GroupSpec{{Kind: kv.FullAttention, BlockTokens: e.g.BlockTokens, ShardBytes: e.g.shardBytes(), Shards: 1}},
		},
		ShardByGroup: []int{0}, PutStride: []int{1}, PutPhase: []int{0},
		Regions:  []connector.KVRegion{{Kind: "memfd", FD: 0, Bytes: uint64(blocks * e.g.shardBytes())}},
		JobBoard: 1, JobSlots: jobSlots, LookupEngine: engineName, Verify: e.verify,
	}
	for layer := range e.g.Layers {
		reg.Segments = append(reg.Segments, connector.KVSegment{
			Offset: uint64(layer) * piece * uint64(blocks), BlockStride: piece, Bytes: piece,
		})
	}
	return reg
}

func (e *engine) close() {
	if e.conn != nil {
		_ = e.conn.Close()
	}
	if e.board != nil {
		_ = e.board.Close()
	}
	if e.kv != nil {
		_ = e.kv.Close()
	}
}

func (e *engine) send(msg any, fds ...int) error {
	frame, err := connector.AppendFrame(nil, msg)
	if err != nil {
		return err
	}
	return e.conn.WriteFDs(frame, fds)
}

func receive[T any](e *engine) (T, error) {
	var none T
	frame, err := e.frames.Next()
	if err != nil {
		return none, err
	}
	msg, err := connector.Decode(frame)
	if err != nil {
		return none, err
	}
	got, ok := msg.(T)
	if !ok {
		return none, fmt.Errorf("got %T %+v, want %T", msg, msg, none)
	}
	return got, nil
}

// fill computes a prompt's KV: it touches the area that stores read.
func (e *engine) fill(prompt int) {
	source := rand.NewChaCha8([32]byte{byte(prompt), byte(prompt >> 8)})
	page := make([]byte, 4096)
	_, _ = source.Read(page) // it never fails
	piece := e.g.shardBytes() / e.g.Layers
	layer := len(e.kv.Bytes()) / e.g.Layers
	for l := range e.g.Layers {
		area := e.kv.Bytes()[l*layer+piece:][:e.g.blocks()*piece]
		for at := 0; at < len(area); at += len(page) {
			n := copy(area[at:], page)
			binary.LittleEndian.PutUint64(area[at:at+min(n, 8)], uint64(prompt)<<40|uint64(l*layer+at))
		}
	}
}

// loaded reports whether the second area has the bytes of the first.
func (e *engine) loaded() bool {
	piece := e.g.shardBytes() / e.g.Layers
	layer := len(e.kv.Bytes()) / e.g.Layers
	area := e.g.blocks() * piece
	for l := range e.g.Layers {
		from := e.kv.Bytes()[l*layer+piece:]
		if !bytes.Equal(from[:area], from[area:2*area]) {
			return false
		}
	}
	return true
}

func (e *engine) next() uint64 {
	e.job++
	e.board.SetWord(int(e.job%jobSlots), e.job)
	return e.job
}

func (e *engine) hashes(prompt int) []byte {
	out := make([]byte, e.g.blocks()*hashBytes)
	for i := range e.g.blocks() {
		// A digest's first bytes are random.
		binary.LittleEndian.PutUint64(out[i*hashBytes:], (uint64(prompt)<<32|uint64(i)+1)*0x9E3779B97F4A7C15)
		binary.LittleEndian.PutUint64(out[i*hashBytes+8:], uint64(prompt)<<32|uint64(i))
	}
	return out
}

// table lists the blocks of an area.
func (e *engine) table(area int) []byte {
	var out []byte
	for i := range e.g.blocks() {
		out = binary.LittleEndian.AppendUint32(out, uint32(1+area*e.g.blocks()+i))
	}
	return out
}

func (e *engine) store(prompt int) (time.Duration, *connector.Result, error) {
	return e.do(e.storeJob(prompt))
}

// storeAhead stores as an engine does that names a step's stores before it computes:
// step lies between the two, and what is waited for is from its end on.
func (e *engine) storeAhead(prompt int, step func()) (time.Duration, *connector.Result, error) {
	job := e.storeJob(prompt)
	if err := e.send(&connector.Ahead{Type: connector.TypeAhead, Job: job.Job}); err != nil {
		return 0, nil, err
	}
	if err := e.send(job); err != nil {
		return 0, nil, err
	}
	step()
	return e.do(&connector.Final{Type: connector.TypeFinal, Jobs: []uint64{job.Job}})
}

func (e *engine) storeJob(prompt int) *connector.StoreBatch {
	return &connector.StoreBatch{Type: connector.TypeStore, Job: e.next(), Epoch: 1, Generation: e.generation, Event: -1, Parts: []connector.StoreJob{{
		Request: fmt.Sprint("s", prompt), TokenLen: e.g.Tokens, CompletedTokens: e.g.Tokens, PromptTokens: e.g.Tokens, PrefillEnd: e.g.Tokens,
		HashLen: hashBytes, Hashes: e.hashes(prompt), Blocks: [][]byte{e.table(0)},
	}}}
}

func (e *engine) load(prompt int) (time.Duration, *connector.Result, error) {
	return e.do(e.loadJob(prompt))
}

func (e *engine) loadJob(prompt int) *connector.LoadJob {
	return &connector.LoadJob{
		Type: connector.TypeLoad, Job: e.next(), Epoch: 1, Request: fmt.Sprint("l", prompt, e.job), TokenLen: e.g.Tokens,
		HashLen: hashBytes, Hashes: e.hashes(prompt), Blocks: [][]byte{e.table(1)},
	}
}

// do sends a job and waits for its result, which must be good.
func (e *engine) do(job any) (time.Duration, *connector.Result, error) {
	begun := time.Now()
	if err := e.send(job); err != nil {
		return 0, nil, err
	}
	r, err := receive[*connector.Result](e)
	took := time.Since(begun)
	if err != nil {
		return 0, nil, err
	}
	if r.Status != connector.StatusOK || r.Chunks != e.g.blocks() {
		return 0, nil, fmt.Errorf("%s: %s %q, %d of %d chunks", r.Kind, r.Status, r.Reason, r.Chunks, e.g.blocks())
	}
	return took, r, nil
}
