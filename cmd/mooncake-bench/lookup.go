package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/bench/lookup"
)

func lookupCommand(code *int) *cli.Command {
	return &cli.Command{
		Name:  "lookup",
		Usage: "measure lookups over the real socket, beside vLLM's own lookup server",
		Description: `Starts mooncake-lookupd on an index of a million chunks and asks it for 8,192
more: all present, and the first missing, for one rank and for eight. Times are
taken in the client's process. With a Python that has vLLM and Mooncake, vLLM's
own client asks, and its own server on a real mooncake_master is asked by turns.
Prints medians, spread and ratios, and the targets that were missed.

Example:

  mooncake-bench lookup
  mooncake-bench lookup --python .venv/bin/python --rounds 60 --json
  mooncake-bench lookup --python .venv/bin/python --cluster`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "binaries", Usage: "`DIRECTORY` of mooncake-lookupd", Value: "bin"},
			&cli.StringFlag{Name: "source", Usage: "`DIRECTORY` of the repository, for what runs in Python", Value: "."},
			&cli.StringFlag{Name: "python", Usage: "`PROGRAM` with vLLM and Mooncake; without it the in-tree server is left out", EnvVars: []string{"MOONCAKE_SIDECAR_PYTHON"}},
			&cli.IntFlag{Name: "asked", Usage: "ask for `N` chunks", Value: 8192},
			&cli.IntFlag{Name: "others", Usage: "`N` other chunks in the index", Value: 1_000_000},
			&cli.BoolFlag{Name: "scattered", Usage: "have the asked chunks put one by one between the others, and not in one piece"},
			&cli.IntFlag{Name: "rounds", Usage: "ask each question `N` times of each server", Value: 40},
			&cli.IntFlag{Name: "clients", Usage: "then with `N` clients at once, 0 to leave that out", Value: 64},
			&cli.BoolFlag{Name: "cluster", Usage: "ask for chunks that are in a Mooncake cluster and not on the node: what the daemon knows, and what it must ask for"},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("lookup takes no argument %q", c.Args().First())
			}
			*code = exitFailed
			ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM)
			defer stop()
			run := lookup.Run
			if c.Bool("cluster") {
				run = lookup.RunCluster
			}
			result, err := run(ctx, &lookup.Options{
				Binaries: c.String("binaries"), Source: c.String("source"), Python: c.String("python"), Asked: c.Int("asked"), Others: c.Int("others"), Scattered: c.Bool("scattered"),
				Rounds: c.Int("rounds"), Clients: c.Int("clients"), Progress: func(what string) { fmt.Fprintln(c.App.ErrWriter, what) },
			})
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return result.JSON(c.App.Writer)
			}
			result.Print(c.App.Writer)
			return nil
		},
	}
}
