package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
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
worker's processor time and page faults, and what they are of a one-thread copy
of the same pieces. With --peers other stores move the same in each round: intree
(Mooncake's client over TCP on a mooncake_master) and lmcache (its own benchmark,
over shared memory; "make setup-bench" installs it). With --busy it measures
instead how far a store slows threads down that compute beside it.

Example:

  mooncake-bench datapath
  mooncake-bench datapath --build before=/tmp/old --build after=bin --only b16
  mooncake-bench datapath --only 34MB --unverified --peers intree,lmcache
  mooncake-bench datapath --busy 2 --only 134MB
  mooncake-bench datapath --build before=/tmp/old --build after=bin --queued 1000 --only 134MB/b16`,
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "build", Usage: "measure the daemons of `NAME=DIR`; the first is what ratios are to", Value: cli.NewStringSlice("now=bin")},
			&cli.IntFlag{Name: "rounds", Usage: "`N` fresh starts of each build for each size", Value: 5},
			&cli.IntFlag{Name: "warm", Usage: "`N` warm loads in a round", Value: 4},
			&cli.DurationFlag{Name: "settle", Usage: "`TIME` between the start and the first job", Value: 700 * time.Millisecond},
			&cli.BoolFlag{Name: "unverified", Usage: "measure each build without verification too"},
			&cli.StringSliceFlag{Name: "peers", Usage: "measure `PEERS` beside: intree, lmcache"},
			&cli.StringFlag{Name: "root", Usage: "the repository's `DIR`, for peers", Value: "."},
			&cli.StringFlag{Name: "python", Usage: "run peers with `FILE`; default .venv/bin/python of the repository", EnvVars: []string{"MOONCAKE_SIDECAR_PYTHON"}},
			&cli.IntFlag{Name: "busy", Usage: "compute with `N` threads beside stores"},
			&cli.IntFlag{Name: "queued", Usage: "measure loads while stores of `MB` in all wait or run"},
			&cli.StringFlag{Name: "only", Usage: "sizes with this `PART` in their name, like 134MB, b16 or 134MB/b16"},
			&cli.StringFlag{Name: "out", Usage: "save the samples in `FILE`"},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("datapath takes no argument %q", c.Args().First())
			}
			o := &datapath.Options{
				Rounds: c.Int("rounds"), Warm: c.Int("warm"), Settle: c.Duration("settle"), Busy: c.Int("busy"), Queued: c.Int("queued") * 1e6, Only: c.String("only"), Out: c.App.Writer,
			}
			o.Unverified, o.Root, o.Python = c.Bool("unverified"), c.String("root"), c.String("python")
			if o.Python == "" {
				o.Python = filepath.Join(o.Root, ".venv", "bin", "python")
			}
			for _, peer := range c.StringSlice("peers") {
				if peer != "intree" && peer != "lmcache" {
					return fmt.Errorf("--peers %q: want intree or lmcache", peer)
				}
				o.Peers = append(o.Peers, peer)
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
