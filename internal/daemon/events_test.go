package daemon

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// told is one event as testdata/events_client.py prints it.
type told struct {
	topic  string
	seq    uint64
	kind   string
	medium string
	hashes []uint64
}

// followEvents runs an indexer with vLLM's own decoder, and returns what it hears.
func followEvents(t *testing.T, endpoint, replay string) <-chan told {
	t.Helper()
	python := os.Getenv("MOONCAKE_SIDECAR_PYTHON")
	if python == "" {
		t.Skip("MOONCAKE_SIDECAR_PYTHON names no Python with vLLM")
	}
	cmd := exec.CommandContext(t.Context(), python, "testdata/events_client.py", endpoint, replay)
	cmd.Env = append(os.Environ(), "VLLM_LOGGING_LEVEL=ERROR")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	heard := make(chan told, 1000)
	read := make(chan struct{})
	t.Cleanup(func() { <-read; _ = cmd.Wait() }) // killed at the end of the test
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var batch []json.RawMessage
			if json.Unmarshal(lines.Bytes(), &batch) != nil {
				heard <- told{kind: "live"}
				continue
			}
			var head told
			var events [][]json.RawMessage
			_, _, _ = json.Unmarshal(batch[0], &head.topic), json.Unmarshal(batch[1], &head.seq), json.Unmarshal(batch[2], &events)
			for _, e := range events {
				one := head
				_, _, _ = json.Unmarshal(e[0], &one.kind), json.Unmarshal(e[1], &one.medium), json.Unmarshal(e[3], &one.hashes)
				heard <- one
			}
		}
	}()
	return heard
}

// importPatience bounds what takes a Python that imports vLLM on a busy machine.
const importPatience = 4 * time.Minute

// hear returns what is heard up to an event, that one last.
func hear(t *testing.T, heard <-chan told, what string, is func(told) bool) (all []told) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), importPatience)
	defer cancel()
	for {
		select {
		case e := <-heard:
			if all = append(all, e); is(e) {
				return all
			}
		case <-ctx.Done():
			t.Fatalf("not heard: %s; but %+v", what, all)
		}
	}
}

func startPublishing(t *testing.T, dir string) *running {
	t.Helper()
	cfg := lookupdConfig(t, dir)
	cfg.KVEvents.Endpoint = config.EventsLocal
	cfg.SetDefaults(os.DirFS("/"))
	r := start(t, func(ctx context.Context) error { return RunLookupd(ctx, cfg, Control{}, quiet) })
	until(t, "lookupd answers", func() bool { _, err := LookupdStatus(t.Context(), dir); return err == nil })
	return r
}

// An indexer hears of everything that is stored, once; of a reset; of what a new
// lookupd has adopted; and when it comes late, of what is there.
func TestEventsReachIndexers(t *testing.T) {
	dir := shortDir(t)
	startWorker(t, dir)
	first := startPublishing(t, dir)
	_, registered := engine(t, dir, filepath.Join(dir, "lookup"))
	endpoint := "ipc://" + filepath.Join(dir, config.EventsSocket)
	if registered.EventsEndpoint != endpoint || registered.EventsReplay == "" || registered.EventsTopic == "" {
		t.Fatalf("registered as %+v", registered)
	}
	heard := followEvents(t, endpoint, registered.EventsReplay)
	hear(t, heard, "the subscription", func(e told) bool { return e.kind == "live" })
	chunks := readyStore(t, dir)
	until(t, "the worker has its store", func() bool {
		s, err := WorkerStatus(t.Context(), dir, "host-0")
		return err == nil && s.StoreReady
	})
	blob := testBlob()
	put(t, chunks, blob)
	var want []uint64
	for i := range 8 {
		want = append(want, binary.BigEndian.Uint64(blob[16*i+8:]))
	}
	all := collect(t, heard, len(want))
	if got := hashesOf(all); !slices.Equal(got, want) {
		t.Errorf("stored: %x, want %x", got, want)
	}
	var last uint64
	for _, e := range all {
		if e.kind == "BlockStored" && (e.medium != "CPU" || e.topic != registered.EventsTopic) {
			t.Errorf("told %+v", e)
		}
		last = max(last, e.seq)
	}

	first.end()
	startPublishing(t, dir)
	_, _ = engine(t, dir, filepath.Join(dir, "lookup"))
	chunks = readyStore(t, dir)
	until(t, "no client is awaited", func() bool {
		s, err := LookupdStatus(t.Context(), dir)
		return err == nil && s.Store.UndeclaredClients == 0
	})
	// The indexer's connection takes its time to be there again; until it is, it
	// hears nothing of what is put, and so the first that it hears shows a gap.
	heardAgain := make(chan struct{})
	go func() {
		defer close(heardAgain)
		for len(heard) == 0 && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
	}()
	deadline := time.Now().Add(importPatience)
	for n := uint64(100) << 56; ; n++ { // behind the others
		more := binary.BigEndian.AppendUint64(make([]byte, 8), n)
		put(t, chunks, more)
		want = append(want, binary.BigEndian.Uint64(more[8:]))
		select {
		case <-heardAgain:
		case <-time.After(100 * time.Millisecond):
			if time.Now().After(deadline) {
				t.Fatal("nothing is heard of a new lookupd")
			}
			continue
		}
		break
	}
	again := hear(t, heard, "a new lookupd", func(e told) bool { return e.kind == "AllBlocksCleared" })
	again = append(again, collect(t, heard, len(want))...)
	if got := hashesOf(again); !slices.Equal(got, want) {
		t.Errorf("adopted: %x, want %x", got, want)
	}
	for _, e := range again {
		if e.kind != "live" && e.seq <= last {
			t.Errorf("%+v is numbered like what the lookupd before has published, up to %d", e, last)
		}
	}
	late := followEvents(t, endpoint, registered.EventsReplay)
	if got := hashesOf(collect(t, late, len(want))); !slices.Equal(got, want) {
		t.Errorf("who comes late hears of %x, want %x", got, want)
	}
}

// collect hears until so many blocks are stored, and that nothing follows of them.
func collect(t *testing.T, heard <-chan told, blocks int) (all []told) {
	t.Helper()
	for n := 0; n < blocks; {
		more := hear(t, heard, "blocks that are stored", func(e told) bool { return e.kind == "BlockStored" })
		n += len(more[len(more)-1].hashes)
		all = append(all, more...)
	}
	select {
	case e := <-heard:
		if e.kind == "BlockStored" || e.kind == "BlockRemoved" {
			t.Errorf("then %+v is told", e)
		}
	case <-time.After(50 * time.Millisecond): // what is wrong may come later, and is seen by the next step
	}
	return all
}

func hashesOf(all []told) (hashes []uint64) {
	for _, e := range all {
		if e.kind == "BlockStored" {
			hashes = append(hashes, e.hashes...)
		}
	}
	slices.Sort(hashes)
	return hashes
}
