package daemon

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/diskio"
	"github.com/mooncake-sidecar/sidecar/internal/metrics"
	"github.com/mooncake-sidecar/sidecar/store/disk"
)

const (
	// queueShare is the part of the store that may wait to be written to disk.
	queueShare    = 8
	minDiskQueue  = 16 << 20
	maxDiskQueue  = 512 << 20
	readersAtDisk = 4
)

// newDiskTier makes the store's disk tier, nil if none is configured. Nothing of
// the disk is touched yet.
func newDiskTier(cfg *config.LookupdConfig, registry *metrics.Registry, log *slog.Logger) (*disk.Tier, error) {
	if cfg.DiskDir == "" {
		return nil, nil
	}
	read, write := registry.DiskTimes()
	tier, err := disk.New(diskio.New(cfg.DiskDir), disk.Options{
		Bytes: uint64(cfg.DiskBytes), WriteBytesPerSecond: uint64(cfg.DiskWriteBytesPerS),
		QueueBytes: min(max(uint64(cfg.StoreBytes)/queueShare, minDiskQueue), maxDiskQueue),
		Readers:    readersAtDisk, ReadTook: read, WriteTook: write, Log: log.With("disk_dir", cfg.DiskDir),
	})
	if err != nil {
		return nil, fmt.Errorf("disk_dir %s: %w", cfg.DiskDir, err)
	}
	return tier, nil
}

// runDiskTier serves the tier. A disk that can't be used is no fault of the
// daemon's: the store goes on without.
func runDiskTier(ctx context.Context, tier *disk.Tier, log *slog.Logger) {
	if err := tier.Run(ctx); err != nil {
		log.Warn("the disk tier did not end well", "error", err)
	}
}
