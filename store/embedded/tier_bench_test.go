package embedded

import (
	"context"
	"hash/crc32"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/diskio"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// BenchmarkPut puts chunks of 512 KiB, 64 a call, into a store that is full, which
// evicts for each: the master's part of it, without the copy, which would take
// fifty times as long. With a disk every victim is handed to it (the time in which
// it writes does not count), or, when puts come faster than it writes, hardly any.
func BenchmarkPut(b *testing.B) {
	b.Run("memory", func(b *testing.B) { benchPut(b, false, false) })
	b.Run("disk", func(b *testing.B) { benchPut(b, true, true) })
	b.Run("disk/overrun", func(b *testing.B) { benchPut(b, true, false) })
}

func benchPut(b *testing.B, onDisk, wait bool) {
	const shardBytes, batch = 512 << 10, 64
	w := newWorld(b, 512<<20)
	w.now = time.Now()
	var tier *disk.Tier
	if onDisk {
		var err error
		if tier, err = disk.New(diskio.New(filepath.Join(b.TempDir(), "tier")), disk.Options{Bytes: 1 << 30, Log: slog.New(slog.DiscardHandler)}); err != nil {
			b.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- tier.Run(ctx) }()
		defer func() { stop(); <-done }()
		w.m.SetTier(tier)
		for !tier.Stats().InService {
			time.Sleep(time.Millisecond)
		}
	}
	s := w.open(1, 1, 100, Declaration{})
	ns := w.namespace(testSpec("m", shardBytes, 1))
	sum := crc32.Checksum(make([]byte, shardBytes), castagnoli)
	items, commits := make([]store.PutItem, batch), make([]store.PutCommit, batch)
	next := 0
	put := func() {
		for i := range items {
			items[i].Hash = testHash(next)
			next++
		}
		grants, err := w.m.PutStart(s, ns, items)
		if err != nil {
			b.Fatal(err)
		}
		for i := range grants {
			if grants[i].Status != store.PutGranted {
				b.Fatalf("put: %v", grants[i].Status)
			}
			commits[i] = store.PutCommit{Ticket: grants[i].Ticket, Checksum: sum}
		}
		if _, err := w.m.PutEnd(s, commits); err != nil {
			b.Fatal(err)
		}
	}
	for range 16 {
		put() // fills the memory
	}
	b.ReportAllocs()
	for b.Loop() {
		put()
		if wait {
			b.StopTimer()
			for tier.Stats().QueuedBytes > 0 {
				time.Sleep(time.Millisecond)
			}
			b.StartTimer()
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batch, "ns/chunk")
	st := w.m.Stats().Tiers
	b.ReportMetric(float64(st.Demoted)/float64(st.Demoted+st.Lost+1), "demoted")
}
