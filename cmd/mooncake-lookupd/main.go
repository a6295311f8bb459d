// Command mooncake-lookupd answers the engines of a node how much of a request's
// prefix is stored, and is the master of the node's shared-memory store.
package main

import (
	"context"
	"log/slog"

	"github.com/mooncake-sidecar/sidecar/cmd/internal/command"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/daemon"
)

func main() { command.Exit(lookupdCommand(&config.LookupdConfig{})) }

// lookupdCommand describes the command; cfg is replaced by what is loaded.
func lookupdCommand(cfg *config.LookupdConfig) *command.Daemon {
	return &command.Daemon{
		Name:    "mooncake-lookupd",
		Usage:   "prefix lookup and shared-memory KV store of a node, for vLLM",
		Example: "mooncake-lookupd --store-bytes 16GiB\nmooncake-lookupd --config /etc/mooncake-sidecar.yaml --log-format json\nmooncake-lookupd status --json",
		Fields:  cfg.Fields(),
		Configure: func(source config.Source) (common *config.Common, settings []config.Setting, err error) {
			if cfg, settings, err = config.LoadLookupd(source); err != nil {
				return nil, nil, err
			}
			return &cfg.Common, settings, nil
		},
		Run: func(ctx context.Context, control daemon.Control, log *slog.Logger) error {
			return daemon.RunLookupd(ctx, cfg, control, log)
		},
		Status: func(ctx context.Context) (*daemon.Status, error) {
			return daemon.LookupdStatus(ctx, cfg.RuntimeDir)
		},
		Commands: []command.Subcommand{
			explainCommand(func() string { return cfg.RuntimeDir }), ctlCommand(func() string { return cfg.RuntimeDir }),
		},
	}
}
