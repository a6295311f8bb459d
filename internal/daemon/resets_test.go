package daemon

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/admin/adminpb"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/internal/unixmsg"
	"github.com/mooncake-sidecar/sidecar/internal/wire"
	"github.com/mooncake-sidecar/sidecar/internal/zmqx"
)

// shimmed is an engine of one rank as its shim shows it to both daemons.
type shimmed struct {
	t      *testing.T
	lookup string // its lookup socket
	core   *connector.FrameReader
	worker *unixmsg.Conn
	frames *connector.FrameReader
	board  *shm.JobBoard
	job    uint64
	// generation is what the engine was told last.
	generation uint64
}

const shimBlocks = 16

func newShimmed(t *testing.T, dir, name string) *shimmed {
	t.Helper()
	s := &shimmed{t: t, lookup: filepath.Join(dir, name)}
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	core, err := unixmsg.Dial(t.Context(), filepath.Join(dir, config.LookupdSocket), nil)
	must(err)
	t.Cleanup(func() { _ = core.Close() })
	must(core.SetReadDeadline(time.Now().Add(patience)))
	s.core = connector.NewFrameReader(core)
	_, err = greet(core, s.core, connector.RoleSchedulerShim)
	must(err)
	must(say(core, &connector.Engine{Type: connector.TypeEngine, Namespace: *spec(), LookupPath: s.lookup, LookupEngine: name}))
	registered, err := connector.Receive[connector.Registered](s.core)
	must(err)
	s.generation = registered.Generation

	bytesOf := uint64(shimBlocks * spec().Groups[0].ShardBytes)
	memory, err := shm.Create(t.Context(), name, int64(bytesOf))
	must(err)
	boardFD, err := shm.Create(t.Context(), name+"-board", 8*shimBlocks)
	must(err)
	s.board, err = shm.MapJobBoard(boardFD, shimBlocks)
	must(err)
	t.Cleanup(func() { _ = errors.Join(s.board.Close(), unix.Close(memory), unix.Close(boardFD)) })
	s.worker, err = unixmsg.Dial(t.Context(), filepath.Join(dir, "worker-host-0.sock"), nil)
	must(err)
	t.Cleanup(func() { _ = s.worker.Close() })
	must(s.worker.SetReadDeadline(time.Now().Add(patience)))
	s.frames = connector.NewFrameReader(s.worker)
	_, err = greet(s.worker, s.frames, connector.RoleWorkerShim)
	must(err)
	frame, err := connector.AppendFrame(nil, &connector.Register{
		Type: connector.TypeRegister, FDs: 2, Namespace: *spec(), Device: "host", NumBlocks: shimBlocks,
		ShardByGroup: []int{0}, PutStride: []int{1}, PutPhase: []int{0},
		Regions:  []connector.KVRegion{{Kind: "memfd", FD: 0, Bytes: bytesOf}},
		Segments: []connector.KVSegment{{BlockStride: bytesOf / shimBlocks, Bytes: bytesOf / shimBlocks}},
		JobBoard: 1, JobSlots: shimBlocks, LookupEngine: name, Verify: true,
	})
	must(err)
	must(s.worker.WriteFDs(frame, []int{memory, boardFD}))
	_, err = connector.Receive[connector.Registered](s.frames)
	must(err)
	return s
}

// prompt returns the hashes of a prompt of two blocks.
func (s *shimmed) prompt(n byte) []byte {
	return append(bytes.Repeat([]byte{n}, 16), bytes.Repeat([]byte{n + 100}, 16)...)
}

// send sends a job that stores a prompt in the generation.
func (s *shimmed) send(prompt byte, generation uint64) {
	s.t.Helper()
	s.job++
	s.board.SetWord(int(s.job%shimBlocks), s.job)
	blocks := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, 1), 2)
	if err := say(s.worker, &connector.StoreBatch{
		Type: connector.TypeStore, Job: s.job, Epoch: 1, Generation: generation, Event: -1, Parts: []connector.StoreJob{{
			Request: fmt.Sprint("r", s.job), TokenLen: 32, CompletedTokens: 32, PromptTokens: 32, PrefillEnd: 32,
			HashLen: 16, Hashes: s.prompt(prompt), Blocks: [][]byte{blocks},
		}},
	}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shimmed) result() *connector.Result {
	s.t.Helper()
	r, err := connector.Receive[connector.Result](s.frames)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// heard waits until the engine is told of a generation.
func (s *shimmed) heard() uint64 {
	s.t.Helper()
	g, err := connector.Receive[connector.Generation](s.core)
	if err != nil {
		s.t.Fatal(err)
	}
	s.generation = g.Generation
	return g.Generation
}

func (s *shimmed) reset() {
	s.t.Helper()
	transport, err := zmqx.New()
	if err != nil {
		s.t.Fatal(err)
	}
	c, err := transport.Dial(s.lookup)
	if err != nil {
		s.t.Fatal(err)
	}
	reply, err := c.Request(patience, []byte(wire.TagReset))
	if err = errors.Join(err, c.Close(), transport.Close()); err != nil || len(reply) != 1 || reply[0][0] != wire.OK {
		s.t.Fatalf("%x, %v", reply, err)
	}
}

// However a namespace was reset, and however many jobs of before are on their way:
// none of them is found afterwards, each engine hears of it, and what an engine
// stores then is found.
func TestResetsWithSeveralJobsUnderWay(t *testing.T) {
	dir := shortDir(t)
	startLookupd(t, dir)
	startWorker(t, dir)
	until(t, "the worker has its store", func() bool {
		s, err := WorkerStatus(t.Context(), dir, "host-0")
		return err == nil && s.StoreReady
	})
	a, b := newShimmed(t, dir, "a"), newShimmed(t, dir, "b")
	digest := spec().Digest()
	admin := adminpb.NewAdminClient(dialled(t, dir))
	resets := []struct {
		who string
		by  func()
	}{
		{"the engine", a.reset},
		{"another engine", b.reset},
		{"an operator", func() {
			if _, err := admin.Remove(t.Context(), &adminpb.RemoveRequest{
				Namespace: digest[:], Scope: &adminpb.RemoveRequest_Everything{Everything: true},
			}); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for i, reset := range resets {
		old, prompt := a.generation, byte(10*i)
		a.send(prompt, old)
		if r := a.result(); r.Status != connector.StatusOK || r.Chunks != 2 {
			t.Fatalf("%s: before its reset: %+v", reset.who, r)
		}
		if got := hit(t, a.lookup, a.prompt(prompt)); got != 32 {
			t.Errorf("%s: a hit of %d before its reset", reset.who, got)
		}
		reset.by()
		for n := range byte(3) { // as many steps were under way
			a.send(prompt+n, old)
		}
		for n := range byte(3) {
			if r := a.result(); r.Reason != "stale_epoch" || r.Chunks+r.Existing != 0 {
				t.Errorf("%s: job %d of before its reset: %+v", reset.who, n, r)
			}
			if got := hit(t, a.lookup, a.prompt(prompt+n)); got != 0 {
				t.Errorf("%s: job %d of before its reset: a hit of %d", reset.who, n, got)
			}
		}
		for _, e := range []*shimmed{a, b} {
			if now := e.heard(); now == old {
				t.Errorf("%s: told of the old generation", reset.who)
			}
		}
		a.send(prompt, a.generation)
		if r := a.result(); r.Status != connector.StatusOK || r.Chunks != 2 {
			t.Errorf("%s: after its reset: %+v", reset.who, r)
		}
		if got := hit(t, b.lookup, a.prompt(prompt)); got != 32 {
			t.Errorf("%s: a hit of %d after its reset", reset.who, got)
		}
	}
}
