package config

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"
)

func TestDiskTier(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*LookupdConfig)
		says string // "" for nothing wrong
	}{
		"none":           {func(*LookupdConfig) {}, ""},
		"directory":      {func(c *LookupdConfig) { c.DiskDir = "/nvme/kv" }, ""},
		"size alone":     {func(c *LookupdConfig) { c.DiskBytes = 1 << 30 }, "no disk_dir"},
		"relative":       {func(c *LookupdConfig) { c.DiskDir = "kv" }, "absolute"},
		"small":          {func(c *LookupdConfig) { c.DiskDir, c.DiskBytes = "/kv", 1<<20 }, "disk_bytes"},
		"huge":           {func(c *LookupdConfig) { c.DiskDir, c.DiskBytes = "/kv", 1<<60 }, "disk_bytes"},
		"written slowly": {func(c *LookupdConfig) { c.DiskDir, c.DiskWriteBytesPerS = "/kv", 1000 }, "disk_write_bytes_per_s"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := LookupdConfig{StoreBytes: 1 << 30}
			c.set(&cfg)
			cfg.SetDefaults(fstest.MapFS{})
			err := cfg.Validate()
			switch {
			case c.says == "" && err != nil:
				t.Errorf("%v", err)
			case c.says != "" && (!errors.Is(err, ErrValue) || !strings.Contains(err.Error(), c.says)):
				t.Errorf("got %v, want something about %q", err, c.says)
			case name == "directory" && (cfg.DiskBytes != 4<<30 || cfg.DiskWriteBytesPerS != 256<<20):
				t.Errorf("defaults %s, %s", cfg.DiskBytes, cfg.DiskWriteBytesPerS)
			}
		})
	}
}
