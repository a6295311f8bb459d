package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/level"
)

// TestRemovalNotes: what was added is read until it is cleared; a line that was being
// written when its writer was killed is none, and nothing behind a damaged one counts.
func TestRemovalNotes(t *testing.T) {
	notes := &removalNotes{path: filepath.Join(t.TempDir(), "removals")}
	expect := func(want ...level.Note) {
		t.Helper()
		got, err := notes.Read()
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%d notes, %v; want %d", len(got), err, len(want))
		}
	}
	add := func(added ...level.Note) {
		t.Helper()
		if err := notes.Add(added); err != nil {
			t.Fatal(err)
		}
	}
	expect()
	all := level.Note{Namespace: [32]byte{1, 31: 2}, All: true}
	one := level.Note{Namespace: [32]byte{3}, Group: 258, Hash: kv.Hash{4, 31: 5}}
	add(all, one)
	add(one)
	expect(all, one, one)
	whole, err := os.ReadFile(notes.path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(notes.path, whole[:len(whole)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	expect(all, one)
	add(all)
	expect(all, one, all)
	whole[noteBytes+noteHashAt] ^= 1
	if err := os.WriteFile(notes.path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := notes.Read(); !errors.Is(err, errNotes) || !slices.Equal(got, []level.Note{all}) {
		t.Errorf("%v, %v of a damaged file", got, err)
	}
	add(one)
	expect(all, one)
	if err := notes.Clear([]level.Note{one}); err != nil {
		t.Fatal(err)
	}
	expect(one)
	if err := errors.Join(notes.Clear(nil), notes.Clear(nil)); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(notes.path + "*"); err != nil || len(left) > 0 {
		t.Errorf("%v, %v are left", left, err)
	}
	(&removalNotes{path: "/nowhere/removals"}).mustFail(t)
}

func (r *removalNotes) mustFail(t *testing.T) {
	t.Helper()
	if err := r.Add([]level.Note{{}}); err == nil {
		t.Error("a note went nowhere, and nobody was told")
	}
}
