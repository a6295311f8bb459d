package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/bench/generate"
	"github.com/mooncake-sidecar/sidecar/bench/trace"
)

// maxGenerated requests of a trace, and those of a workload unless told.
const (
	maxGenerated     = 1 << 22
	defaultGenerated = 1000
)

func generateCommand(code *int) *cli.Command {
	return &cli.Command{
		Name:  "generate",
		Usage: "make a synthetic trace in Mooncake's format",
		Description: `Draws requests from the statistics of a trace (--like: arrivals, lengths, what
prompts share), from such statistics kept in a file (--profile), or from a workload
as the papers describe it (--workload: ` + strings.Join(generate.Workloads(), ", ") + `).
The same seed gives the same bytes. --save-profile keeps the statistics, which hold
no request of the trace.

Example:

  mooncake-bench generate --workload l-eval --requests 500 --rate 2 --out l-eval.jsonl

  mooncake-bench generate --like production.jsonl --rate 8 --save-profile production.json --out busier.jsonl`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "like", Usage: "with the statistics of the trace in `FILE`"},
			&cli.StringFlag{Name: "profile", Usage: "with the statistics in `FILE`, as --save-profile writes them"},
			&cli.StringFlag{Name: "workload", Usage: "of the papers' workload `NAME`"},
			&cli.IntFlag{Name: "requests", Usage: "`N` requests", DefaultText: "as the trace, or 1000"},
			&cli.Float64Flag{Name: "rate", Usage: "`R` requests a second in the mean", DefaultText: "as the trace, or 1"},
			&cli.Uint64Flag{Name: "seed", Usage: "draw from `SEED`", Value: 1},
			&cli.StringFlag{Name: "save-profile", Usage: "write the statistics to `FILE`, too"},
			&cli.StringFlag{Name: "out", Usage: "write the trace to `FILE`, - for standard output", Value: "-"},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("generate takes no argument %q", c.Args().First())
			}
			sources := 0
			for _, name := range []string{"like", "profile", "workload"} {
				if c.String(name) != "" {
					sources++
				}
			}
			if sources != 1 {
				return errors.New("give one of --like, --profile and --workload")
			}
			if n := c.Int("requests"); c.IsSet("requests") && n < 1 || n > maxGenerated {
				return fmt.Errorf("--requests: %d; want 1 to %d", n, maxGenerated)
			}
			if rate := c.Float64("rate"); c.IsSet("rate") && !generate.RateInRange(rate) {
				return fmt.Errorf("--rate: %g requests a second; want %g to %g", rate, generate.MinRatePerS, generate.MaxRatePerS)
			}
			if _, ok := generate.Workload(c.String("workload")); !ok && c.String("workload") != "" {
				return fmt.Errorf("--workload: %q; want %s", c.String("workload"), strings.Join(generate.Workloads(), ", "))
			}
			*code = exitFailed
			profile, requests, err := profileOf(c)
			if err != nil {
				return err
			}
			if c.IsSet("requests") {
				requests = c.Int("requests")
			}
			if c.IsSet("rate") {
				profile.Arrivals.RatePerS = c.Float64("rate")
			}
			if name := c.String("save-profile"); name != "" {
				if err := writeFile(name, profile.Write); err != nil {
					return err
				}
			}
			write := func(out io.Writer) error { return drawTrace(profile, requests, c.Uint64("seed"), out) }
			if c.String("out") == "-" {
				return write(c.App.Writer)
			}
			return writeFile(c.String("out"), write)
		},
	}
}

// profileOf is what the command line names, and how many requests it has.
func profileOf(c *cli.Context) (*generate.Profile, int, error) {
	if name := c.String("workload"); name != "" {
		profile, _ := generate.Workload(name)
		return profile, defaultGenerated, nil
	}
	name := c.String("like") + c.String("profile")
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, fmt.Errorf("opening the statistics' source: %w", err)
	}
	defer f.Close()
	if c.String("profile") != "" {
		profile, err := generate.Read(f)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", name, err)
		}
		return profile, defaultGenerated, nil
	}
	requests, faults, err := trace.ReadAll(f, name, 0)
	for i := range faults {
		if faults[i].Dropped { // statistics of half a trace would be of no use
			return nil, 0, faults[i].Err
		}
	}
	if err != nil {
		return nil, 0, err
	}
	profile, err := generate.Fit(filepath.Base(name), requests)
	if err != nil {
		return nil, 0, fmt.Errorf("%s: %w", name, err)
	}
	return profile, len(requests), nil
}

func drawTrace(profile *generate.Profile, requests int, seed uint64, out io.Writer) error {
	w := trace.NewWriter(out)
	if err := generate.Draw(profile, requests, seed, w.Write); err != nil {
		return fmt.Errorf("drawing a trace: %w", err)
	}
	return w.Flush()
}
