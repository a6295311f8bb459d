package shm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func create(t *testing.T, bytes int64) int {
	t.Helper()
	fd, err := Create(context.Background(), "test", bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func TestCreateAllocatesAndSeals(t *testing.T) {
	const bytes = 3<<20 + 5
	fd := create(t, bytes)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		t.Fatal(err)
	}
	if stat.Size != bytes || stat.Blocks*512 < bytes {
		t.Errorf("size %d, %d bytes allocated", stat.Size, stat.Blocks*512)
	}
	for _, size := range []int64{bytes - 1, bytes + 1} {
		if err := unix.Ftruncate(fd, size); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncate to %d: %v, want EPERM", size, err)
		}
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Error("not close-on-exec")
	}
}

func TestCreateStops(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Create(ctx, "test", 1<<20); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := Create(context.Background(), "test", 0); !errors.Is(err, ErrWrongSize) {
		t.Errorf("got %v", err)
	}
}

func TestMapSharesBytes(t *testing.T) {
	fd := create(t, 8192)
	a, err := Map(fd, 8192)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := Map(fd, 8192)
	if err != nil {
		t.Fatal(err)
	}
	a.Data()[8191] = 7
	if b.Data()[8191] != 7 {
		t.Error("a write is not seen")
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

func TestMapRefuses(t *testing.T) {
	unsealed, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(unsealed)
	if err := unix.Ftruncate(unsealed, 4096); err != nil {
		t.Fatal(err)
	}
	onDisk, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer onDisk.Close()
	if err := onDisk.Truncate(4096); err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	sealed := create(t, 4096)
	for name, c := range map[string]struct {
		fd    int
		bytes uint64
		want  error
	}{
		"shorter than announced": {sealed, 8192, ErrWrongSize},
		"longer than announced":  {sealed, 4095, ErrWrongSize},
		"nothing":                {sealed, 0, ErrWrongSize},
		"unsealed":               {unsealed, 4096, ErrNotSealed},
		"a device":               {int(null.Fd()), 4096, ErrNotShared},
		"a closed descriptor":    {1 << 20, 4096, ErrNotShared},
	} {
		if _, err := Map(c.fd, c.bytes); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	// A file system without seals, or with the seals of an unsealed file.
	if _, err := Map(int(onDisk.Fd()), 4096); !errors.Is(err, ErrNotShared) && !errors.Is(err, ErrNotSealed) {
		t.Errorf("a file on disk: got %v", err)
	}
}

func TestJobBoard(t *testing.T) {
	fd := create(t, 16*8)
	ours, err := MapJobBoard(fd, 16)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	theirs, err := MapJobBoard(fd, 16)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	theirs.SetWord(15, 1<<63|15)
	if got := ours.Word(15); got != 1<<63|15 || ours.Slots() != 16 {
		t.Errorf("got %#x", got)
	}
	if _, err := MapJobBoard(fd, 17); !errors.Is(err, ErrWrongSize) {
		t.Errorf("a board of another length: %v", err)
	}
	if _, err := MapJobBoard(fd, 0); !errors.Is(err, ErrWrongSize) {
		t.Errorf("a board without words: %v", err)
	}
}
