// Command mooncake-worker copies KV blocks between one engine rank and the store.
package main

import (
	"context"
	"log/slog"

	"github.com/mooncake-sidecar/sidecar/cmd/internal/command"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/daemon"
	"github.com/mooncake-sidecar/sidecar/internal/topology"
)

func main() { command.Exit(workerCommand(&config.WorkerConfig{}, daemon.Topology)) }

// workerCommand describes the command; cfg is replaced by what is loaded. machine
// reads what it runs on.
func workerCommand(cfg *config.WorkerConfig, machine func() (*topology.Machine, error)) *command.Daemon {
	return &command.Daemon{
		Name:    "mooncake-worker",
		Usage:   "copies KV blocks between a vLLM rank and the node's KV store",
		Example: "mooncake-worker --device host-0\nmooncake-worker --config /etc/mooncake-sidecar.yaml --device cuda-1\nmooncake-worker --device host-0 status --json\nmooncake-worker topology",
		Fields:  cfg.Fields(),
		Configure: func(source config.Source) (common *config.Common, settings []config.Setting, err error) {
			if cfg, settings, err = config.LoadWorker(source); err != nil {
				return nil, nil, err
			}
			return &cfg.Common, settings, nil
		},
		Run: func(ctx context.Context, control daemon.Control, log *slog.Logger) error {
			return daemon.RunWorker(ctx, cfg, control, log)
		},
		Status: func(ctx context.Context) (*daemon.Status, error) {
			return daemon.WorkerStatus(ctx, cfg.RuntimeDir, cfg.Device)
		},
		Commands: []command.Subcommand{topologyCommand(func() *config.WorkerConfig { return cfg }, machine)},
	}
}
