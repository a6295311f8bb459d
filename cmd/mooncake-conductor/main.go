// Command mooncake-conductor knows which engine holds which prefix, by the engines' KV
// events, and answers routers in Mooncake Conductor's API. With serve it is the router.
package main

import (
	"context"
	"log/slog"

	"github.com/mooncake-sidecar/sidecar/cmd/internal/command"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/daemon"
)

func main() { command.Exit(conductorCommand(&config.ConductorConfig{})) }

// conductorCommand describes the command; cfg is replaced by what is loaded.
func conductorCommand(cfg *config.ConductorConfig) *command.Daemon {
	current := func() *config.ConductorConfig { return cfg }
	return &command.Daemon{
		Name:  "mooncake-conductor",
		Usage: "KV-cache index of many engines, and router on top of it",
		Example: "mooncake-conductor\n" +
			"mooncake-conductor --engines http://10.0.0.1:8000,http://10.0.0.2:8000 --listen :13333 --token-file /etc/mooncake-sidecar/tokens\n" +
			"mooncake-conductor serve --engines http://10.0.0.1:8000,http://10.0.0.2:8000\n" +
			"mooncake-conductor query --model m --tokens 1,2,3\n" +
			"CONDUCTOR_CONFIG_PATH=conductor_config.json mooncake-conductor",
		Fields: cfg.Fields(),
		Configure: func(source config.Source) (common *config.Common, settings []config.Setting, err error) {
			if cfg, settings, err = config.LoadConductor(source); err != nil {
				return nil, nil, err
			}
			return &cfg.Common, settings, nil
		},
		Run: func(ctx context.Context, control daemon.Control, log *slog.Logger) error {
			return daemon.RunConductor(ctx, cfg, false, control, log)
		},
		Status: func(ctx context.Context) (*daemon.Status, error) { return daemon.ConductorStatus(ctx, cfg) },
		Modes: []command.Mode{{
			Name: "serve", Usage: "also route requests: an OpenAI-compatible reverse proxy in front of --engines",
			Example: "mooncake-conductor serve --engines http://10.0.0.1:8000,http://10.0.0.2:8000\n" +
				"mooncake-conductor serve --engines 'p=http://10.0.0.1:8000;prefill,d=http://10.0.0.2:8000;decode' --pooled",
			Run: func(ctx context.Context, control daemon.Control, log *slog.Logger) error {
				return daemon.RunConductor(ctx, cfg, true, control, log)
			},
		}},
		Commands: []command.Subcommand{queryCommand(current), servicesCommand(current)},
	}
}
