package daemon

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/evict"
	"github.com/mooncake-sidecar/sidecar/internal/shm"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// TestAnOlderFormatStartsEmpty: after an update that changes the segment's format
// the store starts empty, and the log says why.
func TestAnOlderFormatStartsEmpty(t *testing.T) {
	layout, err := embedded.NewLayout([16]byte{0x89}, 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	old, err := shm.NewSegment("test", layout.FileBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = old.Close() })
	alive := func(uint32, uint64) bool { return false }
	if _, err := embedded.Create(old, layout, embedded.Options{Alive: alive}); err != nil {
		t.Fatal(err)
	}
	const version, checksum = 8, 64 // of the header
	header := old.Bytes()[:checksum]
	binary.LittleEndian.PutUint32(header[version:], embedded.FormatVersion-1)
	binary.LittleEndian.PutUint32(old.Bytes()[checksum:], crc32.Checksum(header, crc32.MakeTable(crc32.Castagnoli)))

	fd, err := unix.Dup(old.FD())
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	info := connector.SegmentInfo{UUID: "89", Bytes: layout.FileBytes, DataOffset: layout.DataOffset}
	master, segment, err := adoptOrCreate([]kept{{info: info, fd: fd, votes: 1}}, 4<<20, storeOptions(evict.Default, nil, slog.New(slog.NewTextHandler(&log, nil))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = segment.Close() })
	if master.Layout().UUID == layout.UUID {
		t.Error("the old segment was adopted")
	}
	for _, want := range []string{"can't be used", fmt.Sprintf("format %d, this build reads %d", embedded.FormatVersion-1, embedded.FormatVersion), "store created"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, log.String())
		}
	}
}
