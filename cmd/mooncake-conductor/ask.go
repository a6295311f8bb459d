package main

import (
	"errors"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/cmd/internal/command"
	"github.com/mooncake-sidecar/sidecar/conductor/api"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/daemon"
)

// ownSettings are the daemon's settings that say where it is and what it asks for.
func ownSettings() []string {
	return []string{"listen", "token-file", "tls-cert-file", "contract-file"}
}

// askFlags say which conductor is asked.
func askFlags(more ...cli.Flag) []cli.Flag {
	return append(more,
		&cli.StringFlag{Name: "url", Usage: "`address` of the conductor; without, the one of this machine by its configuration"},
		&cli.StringFlag{Name: "ca-file", Usage: "`file` with the authority of its certificate"},
		&cli.StringFlag{Name: "cert-file", Usage: "`file` with a certificate to show"},
		&cli.StringFlag{Name: "key-file", Usage: "`file` with its key"},
		&cli.BoolFlag{Name: "json", Usage: "print JSON"},
	)
}

// clientOf returns a client of the conductor that the flags name.
func clientOf(c *cli.Context, cfg *config.ConductorConfig) (*api.Client, error) {
	return daemon.NewConductorClient(cfg, daemon.ConductorAt{URL: c.String("url"), CAFile: c.String("ca-file"), CertFile: c.String("cert-file"), KeyFile: c.String("key-file")})
}

// coded gives an error the exit code that it has.
func coded(err error) error {
	if errors.Is(err, api.ErrUnreachable) {
		return command.WithCode(command.ExitUnreachable, err)
	}
	return err
}
