package diskio

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestSmallFile(t *testing.T) {
	for name, dir := range dirs(t) {
		t.Run(name, func(t *testing.T) {
			f, err := dir.OpenData("data") // makes the directory
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := dir.ReadFile("small", 10); !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("a file that is not there: %v", err)
			}
			long := strings.Repeat("long", smallUnit)
			for _, content := range []string{"one", "twenty", "", long, "short again"} {
				if err := dir.WriteFile("small", []byte(content)); err != nil {
					t.Fatal(err)
				}
				for _, limit := range []int{4, len(long)} {
					got, err := dir.ReadFile("small", limit)
					if err != nil || string(got) != content[:min(limit, len(content))] {
						t.Fatalf("read %d bytes of %d, %v", len(got), len(content), err)
					}
				}
			}
		})
	}
}

// TestSmallFileNeedsNoRoom: replacing a small file takes no block that it has not
// had before: the two files change places.
func TestSmallFileNeedsNoRoom(t *testing.T) {
	for name, dir := range dirs(t) {
		t.Run(name, func(t *testing.T) {
			f, err := dir.OpenData("data")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			look := func(name string) (inode uint64, blocks int64) {
				t.Helper()
				info, err := os.Stat(filepath.Join(dir.path, name))
				if err != nil {
					t.Fatal(err)
				}
				stat := info.Sys().(*syscall.Stat_t)
				return stat.Ino, stat.Blocks
			}
			if err := dir.WriteFile("small", []byte("first")); err != nil {
				t.Fatal(err)
			}
			for i := range 4 {
				inode, _ := look("small")
				spare, blocks := look("small.new")
				if blocks*512 < smallUnit {
					t.Fatalf("the spare has %d blocks", blocks)
				}
				if err := dir.WriteFile("small", bytes.Repeat([]byte("x"), 1000*(4-i))); err != nil {
					t.Fatal(err)
				}
				if now, _ := look("small"); now != spare {
					t.Errorf("write %d made a new file", i)
				}
				if now, _ := look("small.new"); now != inode {
					t.Errorf("write %d gave the old file's blocks away", i)
				}
			}
		})
	}
}

// TestSmallFileThatIsDamaged: no content of a small file makes reading it fail.
func TestSmallFileThatIsDamaged(t *testing.T) {
	dir := New(t.TempDir())
	for _, content := range []string{"", "short", "\xff\xff\xff\xff\xff\xff\xff\xffcut", strings.Repeat("\x80", 100)} {
		if err := os.WriteFile(filepath.Join(dir.path, "small"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := dir.ReadFile("small", 50); err != nil || len(got) > 50 {
			t.Errorf("%q is read as %q, %v", content, got, err)
		}
	}
}
