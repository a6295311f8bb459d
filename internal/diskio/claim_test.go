package diskio

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDirectoryOfOthers: a directory that others get at is refused, with what to
// do about it, and left as it is.
func TestDirectoryOfOthers(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(t *testing.T, path string)
		says    string
	}{
		"others may read":  {func(t *testing.T, path string) { makeDir(t, path, 0o750) }, "mode 0750"},
		"others may write": {func(t *testing.T, path string) { makeDir(t, path, 0o703) }, "chmod 700"},
		"another user's": {func(t *testing.T, path string) {
			makeDir(t, path, 0o700)
			if err := os.Chown(path, 4711, 4711); err != nil {
				t.Skipf("only root can give a directory away: %v", err)
			}
		}, "belongs to user 4711"},
		"a file": {func(t *testing.T, path string) {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, "no directory"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tier")
			test.prepare(t, path)
			f, err := New(path).OpenData("data")
			if err == nil {
				_ = f.Close()
				t.Fatal("it was taken")
			}
			if !errors.Is(err, ErrNotOurs) || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), path) {
				t.Errorf("%v", err)
			}
			if left, _ := os.ReadDir(path); len(left) != 0 {
				t.Errorf("made in it: %v", left)
			}
		})
	}
	t.Run("ours", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "tier")
		for range 2 { // made, and found
			f, err := New(path).OpenData("data")
			if err != nil {
				t.Fatal(err)
			}
			_ = f.Close()
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("made with mode %v, %v", info.Mode(), err)
		}
	})
}

func makeDir(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Mkdir(path, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask is
		t.Fatal(err)
	}
}
