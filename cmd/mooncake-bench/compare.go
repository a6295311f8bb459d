package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/bench/compare"
	"github.com/mooncake-sidecar/sidecar/bench/machine"
)

func compareCommand(code *int) *cli.Command {
	return &cli.Command{
		Name:  "compare",
		Usage: "measure this project's store and others behind real engines",
		Description: `Starts an engine for each system, asks them by turns, and prints medians,
ratios and 95 % bootstrap intervals. Samples are saved after every pair;
--resume goes on with them. Run it in the repository after "make setup-bench".

Systems: none (the engine alone), null (a connector that claims a hit and has it
at once), intree (vLLM's MooncakeStoreConnector with mooncake_master), lmcache,
ours. Models: kv2k and kv64k, by bytes of KV cache a token.

Example:

  mooncake-bench compare
  mooncake-bench compare --with null,intree,ours --parts warm --models kv2k
  mooncake-bench compare --cluster --with null,intree,ours --parts warm --tokens 8000
  mooncake-bench compare --rounds 40 --resume --json`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "with", Usage: "compare these `SYSTEMS`", Value: "none,null,intree,lmcache,ours"},
			&cli.StringFlag{Name: "parts", Usage: "measure these `PARTS`", Value: "warm,cold,overlap"},
			&cli.StringFlag{Name: "models", Usage: "with these `MODELS`", Value: "kv2k,kv64k"},
			&cli.StringFlag{Name: "tokens", Usage: "and prompts of `N,N,...` tokens", Value: "2000,8000"},
			&cli.IntFlag{Name: "prompts", Usage: "`N` prompts a round of warm and cold", Value: 2},
			&cli.IntFlag{Name: "rounds", Usage: "`N` rounds of warm and cold", Value: 30},
			&cli.IntFlag{Name: "overlap-rounds", Usage: "`N` rounds of overlap", Value: 5},
			&cli.IntFlag{Name: "arrivals", Usage: "`N` prompts in a round of overlap", Value: 12},
			&cli.Float64Flag{Name: "load", Usage: "`SHARE` of the engine's time that arriving prompts take", Value: 0.7},
			&cli.IntFlag{Name: "output-tokens", Usage: "generate and compare `N` tokens", Value: 4},
			&cli.Float64Flag{Name: "max-others", Usage: "measure a pair again beside which other processes used more than `SHARE` of a core", Value: 0.1},
			&cli.IntFlag{Name: "kv-gib", Usage: "`GIB` of KV memory an engine", Value: 1},
			&cli.Int64Flag{Name: "store-mib", Usage: "`MIB` of every store; 0 for what the prompts need"},
			&cli.Uint64Flag{Name: "seed", Usage: "draw prompts and orders from `SEED`", Value: 1},
			&cli.BoolFlag{Name: "nap", Usage: "have all engines sleep 50 µs where vLLM yields in a loop: kernels whose sched_yield starves others (seen with 6.18) stall them all"},
			&cli.BoolFlag{Name: "cluster", Usage: "have ours and intree load from one Mooncake cluster of three storage nodes, the node's own store empty; with --parts warm"},
			&cli.StringFlag{Name: "out", Usage: "save samples and figures in `FILE`", Value: "build/bench/compare.json"},
			&cli.BoolFlag{Name: "resume", Usage: "go on with the samples in --out"},
			&cli.BoolFlag{Name: "json", Usage: "print the report as JSON; progress goes to standard error"},
			&cli.StringFlag{Name: "root", Usage: "the repository's `DIR`", Value: "."},
			&cli.StringFlag{Name: "python", Usage: "run engines with `FILE`; default .venv/bin/python of the repository", EnvVars: []string{"MOONCAKE_SIDECAR_PYTHON"}},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("compare takes no argument %q", c.Args().First())
			}
			options, err := compareOptions(c)
			if err != nil {
				return err
			}
			hosts, err := newHosts(c.String("root"), c.String("python"))
			if err != nil {
				return err
			}
			hosts.Nap, hosts.Cluster = options.Nap, options.Cluster
			*code = exitFailed
			ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			return runCompare(ctx, c, options, hosts)
		},
	}
}

func compareOptions(c *cli.Context) (compare.Options, error) {
	options := compare.Options{
		With: list(c.String("with")), Parts: list(c.String("parts")), Models: list(c.String("models")),
		Prompts: c.Int("prompts"), Rounds: c.Int("rounds"), OverlapRounds: c.Int("overlap-rounds"), Arrivals: c.Int("arrivals"),
		Load: c.Float64("load"), OutputTokens: c.Int("output-tokens"), MaxOthers: c.Float64("max-others"), KVGiB: c.Int("kv-gib"), StoreBytes: c.Int64("store-mib") << 20,
		Seed: c.Uint64("seed"), Nap: c.Bool("nap"), Cluster: c.Bool("cluster"),
	}
	for _, word := range list(c.String("tokens")) {
		var n int
		if _, err := fmt.Sscanf(word, "%d", &n); err != nil || fmt.Sprint(n) != word {
			return options, fmt.Errorf("--tokens: %q is no number", word)
		}
		options.Tokens = append(options.Tokens, n)
	}
	options.SetDefaults()
	if err := options.Validate(); err != nil {
		return options, err
	}
	return options, nil
}

// list splits at commas; of an empty string it is empty.
func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' })
}

// newHosts checks what a run would fail for after minutes.
func newHosts(root, python string) (*compare.Hosts, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("finding the repository: %w", err)
	}
	if _, err := os.Stat(filepath.Join(root, "bench", "compare", "hosts", "host.py")); err != nil {
		return nil, fmt.Errorf("%s is not this project's repository (%w): run there, or give --root", root, err)
	}
	if python == "" {
		python = filepath.Join(root, ".venv", "bin", "python")
	}
	if _, err := os.Stat(python); err != nil {
		return nil, fmt.Errorf("no Python with vLLM (%w): run make setup-bench, or give --python", err)
	}
	return &compare.Hosts{Python: python, Root: root}, nil
}

func runCompare(ctx context.Context, c *cli.Context, options compare.Options, hosts *compare.Hosts) (err error) {
	// Not under the repository: sockets' paths must be short.
	if hosts.Dir, err = os.MkdirTemp("/tmp", "mcb-"); err != nil {
		return fmt.Errorf("making a directory: %w", err)
	}
	progress := c.App.Writer
	if c.Bool("json") {
		progress = c.App.ErrWriter
	}
	begin, facts, path := time.Now(), machine.This(), c.String("out")
	run := &compare.Run{
		Options: options, Launcher: hosts, Quiet: compare.DefaultQuiet(), Busy: machine.Busy,
		Progress: func(format string, args ...any) {
			fmt.Fprintf(progress, "[%6.1f s] %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
		},
		Save: func(pairs []compare.Pair) error {
			return (&compare.Report{Machine: facts, Options: options, Pairs: pairs}).Write(path)
		},
	}
	if c.Bool("resume") {
		if run.Pairs, err = compare.Resume(path, options); err != nil {
			return err
		}
		run.Progress("%d pairs are there already", len(run.Pairs))
	}
	if err := run.Do(ctx); err != nil {
		if errors.Is(err, context.Canceled) {
			// The logs tell nothing that the user did not do.
			if cleanErr := os.RemoveAll(hosts.Dir); cleanErr != nil {
				err = errors.Join(err, cleanErr)
			}
			return fmt.Errorf("interrupted; %d pairs are in %s, --resume goes on: %w", len(run.Pairs), path, err)
		}
		return fmt.Errorf("%w\n(logs are in %s; what was measured is in %s)", err, hosts.Dir, path)
	}
	if err := os.RemoveAll(hosts.Dir); err != nil {
		return fmt.Errorf("cleaning up: %w", err)
	}
	report := compare.NewReport(facts, options, run.Pairs)
	if err := report.Write(path); err != nil {
		return err
	}
	return printReport(report, c.Bool("json"), c.App.Writer)
}

func printReport(report *compare.Report, asJSON bool, out io.Writer) error {
	if !asJSON {
		return report.WriteTable(out)
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(report); err != nil {
		return fmt.Errorf("printing the report: %w", err)
	}
	return nil
}
