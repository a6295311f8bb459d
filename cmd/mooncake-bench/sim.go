package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/bench/sim/cluster"
	"github.com/mooncake-sidecar/sidecar/bench/sim/experiment"
	"github.com/mooncake-sidecar/sidecar/bench/sim/report"
	"github.com/mooncake-sidecar/sidecar/bench/sim/workload"
	"github.com/mooncake-sidecar/sidecar/internal/evict"
)

// simRun is what the command line asks for.
type simRun struct {
	experiments []experiment.Experiment
	traces      []string
	seeds       int
	base        cluster.Config
	json, quiet bool
	html, svg   string
}

func simCommand(code *int) *cli.Command {
	var subcommands []*cli.Command
	for _, e := range experiment.All() {
		subcommands = append(subcommands, simExperiment(code, e.Name, e.Usage, []experiment.Experiment{e}))
	}
	subcommands = append(subcommands, simExperiment(code, "report", "all experiments, for a page to be written with --html", experiment.All()))
	return &cli.Command{
		Name:  "sim",
		Usage: "simulate a disaggregated cluster, with the papers' figures beside",
		Description: `Simulates prefill and decode nodes, their caches, links and scheduler, on a virtual
clock: the same command line gives the same bytes. Index, eviction policies and
scheduler are those of the daemons. Experiments that replay need a trace in
Mooncake's format; files named conversation_trace.jsonl and synthetic_trace.jsonl
are taken for the papers' traces and compared with the papers' values.

Example:

  mooncake-bench sim schedule --trace conversation_trace.jsonl

  mooncake-bench sim report --trace conversation_trace.jsonl --trace synthetic_trace.jsonl --html report.html`,
		Subcommands: subcommands,
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("no experiment %q; see mooncake-bench sim --help", c.Args().First())
			}
			return cli.ShowSubcommandHelp(c)
		},
	}
}

func simExperiment(code *int, name, usage string, experiments []experiment.Experiment) *cli.Command {
	base := cluster.Default()
	return &cli.Command{
		Name:        name,
		Usage:       usage,
		Description: "Example:\n\n  mooncake-bench sim " + name + " --trace conversation_trace.jsonl --html " + name + ".html",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "trace", Usage: "replay the requests in `FILE`; may be given again"},
			&cli.IntFlag{Name: "seeds", Usage: "give means over `N` seeds", Value: 5},
			&cli.Uint64Flag{Name: "seed", Usage: "begin with `SEED`"},
			&cli.IntFlag{Name: "prefill", Usage: "`NODES` that prefill", Value: base.Prefill},
			&cli.IntFlag{Name: "decode", Usage: "`NODES` that decode", Value: base.Decode},
			&cli.IntFlag{Name: "cache-blocks", Usage: "room for `BLOCKS` of 512 tokens on each prefill node", Value: base.CacheBlocks},
			&cli.StringFlag{Name: "policy", Usage: "evict by `POLICY`: " + strings.Join(evict.Names(), ", "), Value: base.Policy},
			&cli.Float64Flag{Name: "threshold", Usage: "fetch a prefix that is more than `TIMES` as long as the local one", Value: base.Scheduler.Threshold},
			&cli.Float64Flag{Name: "service-factor", Usage: "prefills take `TIMES` as long as fitted", Value: base.Costs.ServiceFactor},
			&cli.Float64Flag{Name: "sequence-ms", Usage: "`MS` that a sequence adds to a decode iteration", Value: 1e3 * base.Costs.DecodeSequenceSeconds},
			&cli.Float64Flag{Name: "link-gigabytes", Usage: "links of `GB/S` each way", Value: base.Costs.LinkBytesPerSecond / 1e9},
			&cli.Float64Flag{Name: "estimate-error", Usage: "estimates of prefill times are off by a factor whose logarithm deviates by `SIGMA`"},
			&cli.BoolFlag{Name: "json", Usage: "print a line of JSON for each table"},
			&cli.BoolFlag{Name: "quiet", Usage: "do not say what is being run"},
			&cli.StringFlag{Name: "html", Usage: "write a page with tables and plots to `FILE`"},
			&cli.StringFlag{Name: "svg", Usage: "write the plots to files in `FOLDER`"},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("sim %s takes no argument %q", name, c.Args().First())
			}
			run := newSimRun(c, experiments)
			if run.seeds < 1 {
				return fmt.Errorf("--seeds: %d; want 1 or more", run.seeds)
			}
			if err := run.base.Validate(); err != nil {
				return err
			}
			*code = exitFailed
			ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM)
			defer stop()
			return run.do(ctx, c.App.Writer, c.App.ErrWriter)
		},
	}
}

func newSimRun(c *cli.Context, experiments []experiment.Experiment) *simRun {
	run := &simRun{
		experiments: experiments, traces: c.StringSlice("trace"), seeds: c.Int("seeds"), base: cluster.Default(),
		json: c.Bool("json"), quiet: c.Bool("quiet"), html: c.String("html"), svg: c.String("svg"),
	}
	run.base.Seed = c.Uint64("seed")
	run.base.Prefill, run.base.Decode, run.base.CacheBlocks = c.Int("prefill"), c.Int("decode"), c.Int("cache-blocks")
	run.base.Policy = c.String("policy")
	run.base.Scheduler.Threshold = c.Float64("threshold")
	run.base.Costs.ServiceFactor = c.Float64("service-factor")
	if c.IsSet("sequence-ms") {
		run.base.Costs.DecodeSequenceSeconds = c.Float64("sequence-ms") / 1e3
	}
	run.base.Costs.LinkBytesPerSecond = c.Float64("link-gigabytes") * 1e9
	run.base.EstimateError = c.Float64("estimate-error")
	return run
}

func (run *simRun) do(ctx context.Context, out, errOut io.Writer) error {
	setting := &experiment.Setting{Seeds: run.seeds, Base: run.base}
	if !run.quiet {
		setting.Progress = func(what string) { fmt.Fprintln(errOut, what) }
	}
	for _, name := range run.traces {
		w, err := readWorkload(name)
		if err != nil {
			return err
		}
		setting.Traces = append(setting.Traces, w)
	}
	var tables []report.Table
	for i := range run.experiments {
		found, err := run.experiments[i].Do(ctx, setting)
		if err != nil {
			return err
		}
		tables = append(tables, found...)
	}
	if err := run.files(tables); err != nil {
		return err
	}
	if run.json {
		return report.JSON(out, tables)
	}
	return report.Text(out, tables)
}

// readWorkload reads a trace and names it by its file.
func readWorkload(name string) (*workload.Workload, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("reading the trace: %w", err)
	}
	defer f.Close()
	w, err := workload.Read(f, name)
	if err != nil {
		return nil, err
	}
	w.Name = strings.TrimSuffix(strings.TrimSuffix(filepath.Base(name), ".jsonl"), "_trace")
	return w, nil
}

// files writes what the command line asks for beside the text.
func (run *simRun) files(tables []report.Table) error {
	if run.html != "" {
		f, err := os.Create(run.html)
		if err != nil {
			return fmt.Errorf("writing the page: %w", err)
		}
		if err := report.HTML(f, "mooncake-bench sim: the papers' figures and ours", tables); err != nil {
			f.Close()
			return err
		}
		if err := f.Close(); err != nil {
			return fmt.Errorf("writing the page: %w", err)
		}
	}
	if run.svg == "" {
		return nil
	}
	if err := os.MkdirAll(run.svg, 0o755); err != nil {
		return fmt.Errorf("writing the plots: %w", err)
	}
	n := map[string]int{}
	for i := range tables {
		for j := range tables[i].Plots {
			name := tables[i].Name
			n[name]++
			path := filepath.Join(run.svg, fmt.Sprintf("%s-%d.svg", name, n[name]))
			if err := os.WriteFile(path, []byte(tables[i].Plots[j].SVG()), 0o644); err != nil {
				return fmt.Errorf("writing the plots: %w", err)
			}
		}
	}
	return nil
}
