package diskio

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// dirs are a directory on the disk of the working directory and one in memory,
// which may or may not have O_DIRECT.
func dirs(t *testing.T) map[string]Dir {
	t.Helper()
	out := map[string]Dir{"disk": New(filepath.Join(t.TempDir(), "tier"))}
	if shm, err := os.MkdirTemp("/dev/shm", "diskio-test-"); err == nil {
		t.Cleanup(func() { _ = os.RemoveAll(shm) })
		out["memory"] = New(filepath.Join(shm, "tier"))
	}
	return out
}

func TestDataFile(t *testing.T) {
	for name, dir := range dirs(t) {
		t.Run(name, func(t *testing.T) {
			f, err := dir.OpenData("data")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := dir.OpenData("data"); !errors.Is(err, ErrInUse) {
				t.Errorf("opened twice: %v", err)
			}
			if err := f.Allocate(0, 1<<20); err != nil {
				t.Fatal(err)
			}
			for _, bytesLong := range []int{disk.PageBytes, 256 << 10} {
				b := dir.Buffer(bytesLong)
				if addressOf(b)%disk.PageBytes != 0 || len(b) != bytesLong {
					t.Fatalf("a buffer of %d bytes at %#x", len(b), addressOf(b))
				}
				for i := range b {
					b[i] = byte(i * 7)
				}
				want := bytes.Clone(b)
				if n, err := f.WriteAt(b, 8*disk.PageBytes); n != len(b) || err != nil {
					t.Fatalf("WriteAt() = %d, %v", n, err)
				}
				clear(b)
				if n, err := f.ReadAt(b, 8*disk.PageBytes); n != len(b) || err != nil || !bytes.Equal(b, want) {
					t.Fatalf("ReadAt() = %d, %v", n, err)
				}
			}
			if n, err := f.ReadAt(dir.Buffer(disk.PageBytes), 2<<20); n != 0 || err == nil {
				t.Errorf("read %d bytes behind the end: %v", n, err)
			}
			if err := f.Limit(1 << 16); err != nil {
				t.Error(err)
			}
			if info, err := os.Stat(filepath.Join(dir.path, "data")); err != nil || info.Size() != 1<<16 || info.Mode().Perm() != 0o600 {
				t.Errorf("the file is %v, %v", info, err)
			}
			if err := errors.Join(f.Sync(), f.Close()); err != nil {
				t.Error(err)
			}
			again, err := dir.OpenData("data")
			if err != nil {
				t.Fatal(err)
			}
			_ = again.Close()
		})
	}
}

// TestLinks are not followed: the directory may be in a place that others write
// to.
func TestLinks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tier")
	makeDir(t, path, 0o700)
	target := filepath.Join(path, "target")
	if err := os.WriteFile(target, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(path, "data")); err != nil {
		t.Fatal(err)
	}
	if f, err := New(path).OpenData("data"); err == nil {
		_ = f.Close()
		t.Error("a link was followed")
	}
}
