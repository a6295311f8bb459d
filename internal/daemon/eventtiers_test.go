package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// sample finds a series in a scrape.
func sample(text, series string) int {
	found := regexp.MustCompile(`(?m)^mooncake_sidecar_` + regexp.QuoteMeta(series) + ` (\S+)$`).FindStringSubmatch(text)
	if found == nil {
		return 0
	}
	value, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		return -1
	}
	return int(value)
}

// What was told of memory and disk, taken together, is what is there, when more
// was stored than memory has room for.
func TestEventsTellOfBothTiers(t *testing.T) {
	dir := shortDir(t)
	cfg := lookupdConfig(t, dir)
	cfg.KVEvents.Endpoint = config.EventsLocal
	cfg.DiskDir, cfg.DiskBytes = filepath.Join(t.TempDir(), "tier"), 64<<20
	cfg.SetDefaults(os.DirFS("/"))
	start(t, func(ctx context.Context) error { return RunLookupd(ctx, cfg, Control{}, quiet) })
	until(t, "lookupd answers", func() bool { _, err := LookupdStatus(t.Context(), dir); return err == nil })
	chunks := readyStore(t, dir)
	until(t, "the disk is in service", func() bool {
		_, text := fetch(t, dir, config.LookupdSocket, "GET", "/metrics", "")
		return sample(text, "store_disk_in_service") == 1
	})
	large := spec()
	large.Groups[0].ShardBytes = 64 << 10
	for i := range uint32(25) {
		var blob []byte
		for j := range uint32(20) { // 31 MiB in all, into 16
			sum := sha256.Sum256(binary.LittleEndian.AppendUint32(nil, i<<16|j))
			blob = append(blob, sum[:16]...)
		}
		putAs(t, chunks, large, blob)
	}
	until(t, "all is told", func() bool {
		_, text := fetch(t, dir, config.LookupdSocket, "GET", "/metrics", "")
		there := func(medium string) int {
			return sample(text, `kv_events_blocks_total{event="BlockStored",medium="`+medium+`"}`) -
				sample(text, `kv_events_blocks_total{event="BlockRemoved",medium="`+medium+`"}`)
		}
		memory, disk := sample(text, `store_chunks{tier="memory"}`), sample(text, `store_chunks{tier="disk"}`)
		return memory > 0 && disk > 0 && there("CPU") == memory && there("STORAGE") == disk && sample(text, "kv_events_behind_changes") == 0 &&
			sample(text, `kv_events_blocks_total{event="BlockRemoved",medium="CPU"}`) > 0
	})
}
