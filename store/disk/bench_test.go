package disk_test

import (
	"fmt"
	"hash/crc32"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/internal/diskio"
	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// benchBytes is what is written and read in a round of a benchmark.
const benchBytes = 256 << 20

// BenchmarkFetch reads chunks back, against a plain read of the tier's own file:
// with one call at a time, and with as many at a time as the tier makes, past the
// page cache, and through it with nothing in it.
func BenchmarkFetch(b *testing.B) {
	for _, chunkBytes := range []int{64 << 10, 512 << 10, 2 << 20} {
		b.Run(fmt.Sprintf("%dKiB", chunkBytes>>10), func(b *testing.B) { benchFetch(b, chunkBytes) })
	}
}

func benchFetch(b *testing.B, chunkBytes int) {
	path := filepath.Join(b.TempDir(), "tier")
	t := serve(b, path, disk.Options{Bytes: 1 << 30, QueueBytes: benchBytes, Log: slog.New(slog.DiscardHandler)})
	chunks := benchBytes / chunkBytes
	writeAll(b, t, 0, chunks, chunkBytes)
	into := make([][]byte, chunks)
	for i := range into {
		into[i] = make([]byte, chunkBytes)
	}
	b.Run("tier", func(b *testing.B) {
		b.SetBytes(benchBytes)
		for b.Loop() {
			var open sync.WaitGroup
			open.Add(chunks)
			for i := range chunks {
				if !t.Fetch(keyFor(i), into[i:i+1], func(_ *disk.Chunk, err error) {
					if err != nil {
						b.Error(err)
					}
					open.Done()
				}) {
					b.Fatal("refused")
				}
			}
			open.Wait()
		}
	})
	for _, lanes := range []int{1, 4} {
		b.Run(fmt.Sprintf("plain/direct/%d", lanes), func(b *testing.B) { benchPlain(b, path, unix.O_DIRECT, lanes, chunkBytes) })
		b.Run(fmt.Sprintf("plain/cached/%d", lanes), func(b *testing.B) { benchPlain(b, path, 0, lanes, chunkBytes) })
	}
}

// benchPlain reads the same range of the file.
func benchPlain(b *testing.B, path string, flags, lanes, chunkBytes int) {
	f, err := os.OpenFile(filepath.Join(path, "chunks.mcs"), os.O_RDONLY|flags, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	call := min(chunkBytes, 4<<20)
	b.SetBytes(benchBytes)
	for b.Loop() {
		if flags == 0 {
			b.StopTimer()
			_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
			b.StartTimer()
		}
		var open sync.WaitGroup
		for lane := range lanes {
			open.Go(func() {
				buf := diskio.New(path).Buffer(call)
				for at := lane * call; at < benchBytes; at += lanes * call {
					if _, err := f.ReadAt(buf, 1<<20+int64(at)); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		open.Wait()
	}
}

// writeAll demotes chunks of zeros, the first of which has the number, and waits for
// them. Their memory is not in the processor's caches, as a victim's is not.
func writeAll(b *testing.B, t *disk.Tier, first, chunks, chunkBytes int) {
	memory := make([]byte, 64<<20)
	clear(memory) // else it would be one page
	sum := crc32.Checksum(memory[:chunkBytes], castagnoli)
	var open sync.WaitGroup
	b.StartTimer()
	for i := range chunks {
		source := [][]byte{memory[i*chunkBytes%len(memory):][:chunkBytes]}
		c := disk.Chunk{Key: keyFor(first + i), ShardBytes: uint32(chunkBytes), Checksums: []uint32{sum}}
		open.Add(1)
		if !t.Demote(c, source, func(err error) {
			if err != nil {
				b.Error(err)
			}
			open.Done()
		}) {
			b.Fatal("refused")
		}
	}
	open.Wait()
	b.StopTimer()
}

// BenchmarkDemote writes chunks of 512 KiB, the older ones giving way, against plain
// writes past the page cache of 4 MiB each, one at a time.
func BenchmarkDemote(b *testing.B) {
	const chunkBytes = 512 << 10
	b.Run("tier", func(b *testing.B) {
		t := serve(b, filepath.Join(b.TempDir(), "tier"), disk.Options{Bytes: 1 << 30, QueueBytes: benchBytes, Log: slog.New(slog.DiscardHandler)})
		b.SetBytes(benchBytes)
		const chunks = benchBytes / chunkBytes
		for round := 0; b.Loop(); round++ {
			b.StopTimer()
			writeAll(b, t, round*chunks, chunks, chunkBytes)
			b.StartTimer()
		}
	})
	b.Run("plain", func(b *testing.B) {
		dir := diskio.New(filepath.Join(b.TempDir(), "tier"))
		f, err := dir.OpenData("plain")
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		if err := f.Allocate(0, benchBytes); err != nil {
			b.Fatal(err)
		}
		buf := dir.Buffer(4 << 20)
		b.SetBytes(benchBytes)
		for b.Loop() {
			for at := 0; at < benchBytes; at += len(buf) {
				if _, err := f.WriteAt(buf, int64(at)); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
	b.Run("look", func(b *testing.B) {
		t := serve(b, filepath.Join(b.TempDir(), "tier"), disk.Options{Bytes: 1 << 30, Log: slog.New(slog.DiscardHandler)})
		key := keyFor(1)
		b.ReportAllocs()
		for b.Loop() {
			if _, there := t.Has(&key); there {
				b.Fatal("found")
			}
		}
	})
}
