package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/bench/datapath"
)

func datapathCommand(code *int) *cli.Command {
	return &cli.Command{
		Name:  "datapath",
		Usage: "measure the daemons' loads and stores, without vLLM; compare builds",
		Description: `Starts the daemons of each build by turns, stores and loads prompts of 4 MB to
512 MB from a stand-in engine, and prints medians in microseconds with the
worker's processor time and page faults. With --busy it measures instead how far
a store slows threads down that compute beside it.

Example:

  mooncake-bench datapath
  mooncake-bench datapath --build before=/tmp/old --build after=bin --only b16
  mooncake-bench datapath --busy 2 --only 134MB`,
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "build", Usage: "measure the daemons of `NAME=DIR`; the first is what ratios are to", Value: cli.NewStringSlice("now=bin")},
			&cli.IntFlag{Name: "rounds", Usage: "`N` fresh starts of each build for each size", Value: 5},
			&cli.IntFlag{Name: "warm", Usage: "`N` warm loads in a round", Value: 4},
			&cli.DurationFlag{Name: "settle", Usage: "`TIME` between the start and the first job", Value: 700 * time.Millisecond},
			&cli.IntFlag{Name: "busy", Usage: "compute with `N` threads beside stores"},
			&cli.StringFlag{Name: "only", Usage: "sizes whose name has this `TEXT`, like 134MB or b16"},
			&cli.StringFlag{Name: "out", Usage: "save the samples in `FILE`"},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("datapath takes no argument %q", c.Args().First())
			}
			o := &datapath.Options{
				Rounds: c.Int("rounds"), Warm: c.Int("warm"), Settle: c.Duration("settle"), Busy: c.Int("busy"), Only: c.String("only"), Out: c.App.Writer,
			}
			for _, pair := range c.StringSlice("build") {
				name, dir, ok := strings.Cut(pair, "=")
				if !ok {
					return fmt.Errorf("--build %q: want NAME=DIR", pair)
				}
				o.Builds = append(o.Builds, datapath.Build{Name: name, Dir: dir})
			}
			*code = exitFailed
			ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM)
			defer stop()
			samples, err := datapath.Run(ctx, o)
			if err != nil || c.String("out") == "" {
				return err
			}
			encoded, err := json.MarshalIndent(samples, "", " ")
			if err != nil {
				return fmt.Errorf("encoding the samples: %w", err)
			}
			return os.WriteFile(c.String("out"), encoded, 0o644)
		},
	}
}
