package daemon

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// What the inspector explains is the hit that the lookup socket answers.
func TestExplainLiveDaemon(t *testing.T) {
	dir := shortDir(t)
	inspector, err := NewInspector(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := inspector.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := inspector.Namespaces(t.Context()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("without a daemon: %v", err)
	}

	startLookupd(t, dir)
	lookup := filepath.Join(dir, "lookup")
	engine(t, dir, lookup)
	chunks := readyStore(t, dir)
	blob := testBlob()
	put(t, chunks, blob[:5*16])

	var all []Namespace
	until(t, "the daemon is reached again", func() bool {
		all, err = inspector.Namespaces(t.Context())
		return err == nil
	})
	if len(all) != 1 || all[0].Spec.Model != "m" {
		t.Fatalf("namespaces %+v", all)
	}
	hashes, err := kv.NewHashBlob(blob, 16)
	if err != nil {
		t.Fatal(err)
	}
	e, err := inspector.Explain(t.Context(), &all[0], hashes, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	if want := hit(t, lookup, blob); e.HitTokens != want || want != 80 {
		t.Errorf("explained a hit of %d, the socket says %d", e.HitTokens, want)
	}
	if g := e.Groups[0]; !g.Limits || g.FirstMissing != 5 || !strings.Contains(g.Reason, "chunk 5 (tokens 80 to 96) is absent") ||
		e.States[Chunk{0, 4}] != embedded.ChunkPresent || e.States[Chunk{0, 5}] != embedded.ChunkAbsent {
		t.Errorf("group %+v, states %v", g, e.States)
	}
	wrong, err := kv.NewHashBlob(blob, 32)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inspector.Explain(t.Context(), &all[0], wrong, 100); err == nil || !strings.Contains(err.Error(), "hashes of 32 bytes") {
		t.Errorf("hashes of another length: %v", err)
	}
}
