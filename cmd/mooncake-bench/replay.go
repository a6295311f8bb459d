package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/bench/replay"
	"github.com/mooncake-sidecar/sidecar/bench/replay/client"
	"github.com/mooncake-sidecar/sidecar/bench/replay/prompt"
	"github.com/mooncake-sidecar/sidecar/bench/replay/record"
	"github.com/mooncake-sidecar/sidecar/bench/replay/report"
	"github.com/mooncake-sidecar/sidecar/bench/trace"
	"github.com/mooncake-sidecar/sidecar/internal/version"
)

// exitIncomplete: a replay ended with a report, and with something amiss in it.
const exitIncomplete = 3

// specialShare of a vocabulary is where models keep tokens that are no text.
const specialShare = 16

// replayRun is what the command line asks for.
type replayRun struct {
	trace, csv, html, baseline string
	shownURL                   string // without a password
	limit                      int
	json, reset, requireCached bool
	vocabulary                 int
	seed                       uint64
	client                     client.Options
	options                    replay.Options
}

func replayCommand(code *int) *cli.Command {
	return &cli.Command{
		Name:  "replay",
		Usage: "send a trace's requests to a live server and measure its answers",
		Description: `Reads a trace in Mooncake's format and sends its requests to a server with
OpenAI's API: prompts of token ids, in which equal hash_ids are equal blocks of
tokens, and outputs of exactly the trace's length. Requests go out when the trace
says (--speed 2: twice as fast), and times count from then, or in a closed loop
(--closed-loop --at-once N) as fast as they are answered.

Reports times to first token and between tokens (also the papers' TBT: the mean of
a request's longest tenth of gaps), throughput, goodput, and for each request how
many of its tokens were cached beside how many a prefix cache that never evicts
must have. --scale shrinks prompts and outputs for small models; a scaled block
must be a multiple of the server's. Every --seed gives other tokens: a run with a
new one finds nothing cached of those before.

A bad line of the trace and a failed request are counted and named, and the replay
goes on. Exit codes: 0 all was answered, 1 nothing could be measured, 2 wrong
command line, 3 there is a report, and not all of the trace is in it.

Example:

  mooncake-bench replay --trace conversation_trace.jsonl --url http://localhost:8000 \
      --model llama --html replay.html

  mooncake-bench replay --trace conversation_trace.jsonl --url http://localhost:8000 \
      --model tiny --limit 300 --scale 1/4 --closed-loop --csv ours.csv --baseline without.csv`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "trace", Usage: "read requests from `FILE`, - for standard input", Required: true},
			&cli.StringFlag{Name: "url", Usage: "ask the server at `URL`", Required: true},
			&cli.StringFlag{Name: "model", Usage: "for `MODEL`; without it the only one that the server has"},
			&cli.IntFlag{Name: "limit", Usage: "replay the first `N` requests; 0 for all"},
			&cli.Float64Flag{Name: "speed", Usage: "replay `X` times as fast as the trace", Value: 1},
			&cli.StringFlag{Name: "scale", Usage: "multiply lengths by `L`, such as 0.25 or 1/4", Value: "1"},
			&cli.Float64Flag{Name: "output-scale", Usage: "multiply outputs by `L` instead", DefaultText: "as --scale"},
			&cli.BoolFlag{Name: "closed-loop", Usage: "send a request when one before was answered"},
			&cli.IntFlag{Name: "at-once", Usage: "`N` requests under way in a closed loop (default 1), at most in an open one (default 4096)", DefaultText: "by loop"},
			&cli.DurationFlag{Name: "slo-ttft", Usage: "count a request as good whose first token comes within `TIME`", Value: 30 * time.Second},
			&cli.DurationFlag{Name: "slo-tbt", Usage: "and whose longest tenth of gaps has a mean within `TIME`", Value: 100 * time.Millisecond},
			&cli.DurationFlag{Name: "timeout", Usage: "give a request up that gets no token for `TIME`", Value: 5 * time.Minute},
			&cli.IntFlag{Name: "block", Usage: "tokens in a `BLOCK` of the server's cache; without it the server is asked"},
			&cli.IntFlag{Name: "vocabulary", Usage: "draw tokens below `N`; without it the server is asked"},
			&cli.Uint64Flag{Name: "seed", Usage: "draw tokens from `SEED`", Value: 1},
			&cli.BoolFlag{Name: "reset", Usage: "empty the server's caches first (vLLM with VLLM_SERVER_DEV_MODE=1)"},
			&cli.BoolFlag{Name: "require-cached", Usage: "exit with 3 also when a request had fewer or more tokens cached than expected"},
			&cli.StringFlag{Name: "api-key", Usage: "send `KEY` to the server", EnvVars: []string{"MOONCAKE_SIDECAR_API_KEY"}},
			&cli.BoolFlag{Name: "json", Usage: "print the report as JSON"},
			&cli.StringFlag{Name: "csv", Usage: "write a line for each request to `FILE`"},
			&cli.StringFlag{Name: "html", Usage: "write a page with plots to `FILE`"},
			&cli.StringFlag{Name: "baseline", Usage: "compare with an earlier replay's `CSV`"},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("replay takes no argument %q", c.Args().First())
			}
			run, err := newReplayRun(c)
			if err != nil {
				return err
			}
			*code = exitFailed
			ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM)
			defer stop()
			whole, err := run.do(ctx, c.App.Reader, c.App.Writer, c.App.ErrWriter)
			if err == nil && !whole {
				*code = exitIncomplete
				return errors.New("not all was replayed as it should be; the report says what")
			}
			return err
		},
	}
}

// newReplayRun checks the command line.
func newReplayRun(c *cli.Context) (*replayRun, error) {
	scale, err := prompt.ParseScale(c.String("scale"))
	if err != nil {
		return nil, fmt.Errorf("--scale: %w", err)
	}
	run := &replayRun{
		trace: c.String("trace"), csv: c.String("csv"), html: c.String("html"), baseline: c.String("baseline"), limit: c.Int("limit"),
		json: c.Bool("json"), reset: c.Bool("reset"), requireCached: c.Bool("require-cached"), vocabulary: c.Int("vocabulary"), seed: c.Uint64("seed"),
		client: client.Options{URL: c.String("url"), Model: c.String("model"), APIKey: c.String("api-key"), Silence: c.Duration("timeout")},
		options: replay.Options{
			Scale: scale, EngineBlock: c.Int("block"), OutputFactor: float64(scale.BlockTokens) / trace.BlockTokens, Speed: c.Float64("speed"),
			ClosedLoop: c.Bool("closed-loop"), AtOnce: c.Int("at-once"), SLO: record.SLO{TTFT: c.Duration("slo-ttft"), TBT: c.Duration("slo-tbt")},
		},
	}
	if c.IsSet("output-scale") {
		run.options.OutputFactor = c.Float64("output-scale")
	}
	if !c.IsSet("at-once") {
		run.options.AtOnce = 4096
		if run.options.ClosedLoop {
			run.options.AtOnce = 1
		}
	}
	u, err := url.Parse(run.client.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("--url: %q; want http://HOST:PORT", run.client.URL)
	}
	run.shownURL = u.Redacted()
	if run.limit < 0 || run.vocabulary < 0 || run.options.EngineBlock < 0 || run.client.Silence <= 0 {
		return nil, errors.New("--limit, --vocabulary, --block and --timeout can't be negative, and --timeout not 0")
	}
	check := run.options
	if check.EngineBlock == 0 {
		check.EngineBlock = 1 // the server is asked later
	}
	return run, check.Validate()
}

// do replays and reports; whole tells whether there is nothing to complain of.
func (run *replayRun) do(ctx context.Context, in io.Reader, out, errOut io.Writer) (whole bool, err error) {
	requests, faults, traceErr := run.read(in)
	if len(requests) == 0 {
		if len(faults) > 0 {
			traceErr = errors.Join(traceErr, fmt.Errorf("%d lines, the first: %w", len(faults), faults[0].Err))
		}
		return false, fmt.Errorf("no request in the trace: %w", traceErr)
	}
	baseline, err := run.readBaseline()
	if err != nil {
		return false, err
	}
	server := client.New(run.client)
	defer server.Close()
	if server, err = run.meet(ctx, server, errOut); err != nil {
		return false, err
	}
	defer server.Close()
	first := run.vocabulary / specialShare
	maker, err := prompt.NewMaker(run.options.Scale, run.options.EngineBlock, first, run.vocabulary, run.seed)
	if err != nil {
		return false, err
	}
	setup := report.Setup{
		Version: version.Version, Begin: time.Now(), Trace: filepath.Base(run.trace), URL: run.shownURL, Model: run.client.Model, Loop: "open",
		Speed: run.options.Speed, AtOnce: run.options.AtOnce, BlockTokens: run.options.EngineBlock, ScaledBlock: run.options.Scale.BlockTokens,
		OutputFactor: run.options.OutputFactor, FirstToken: first, Vocabulary: run.vocabulary, Seed: run.seed,
	}
	if run.options.ClosedLoop {
		setup.Loop, setup.Speed = "closed", 0
	}
	bar := newBar(errOut)
	result, err := replay.Run(ctx, &run.options, requests, maker, server, bar.show)
	bar.end()
	if err != nil {
		return false, err
	}
	r := report.New(setup, result, faults, traceErr)
	if baseline != nil {
		r.Compare(filepath.Base(run.baseline), baseline)
	}
	return r.Whole() && (!run.requireCached || r.Summary.Cached.AsExpected == r.Summary.Answered), run.write(r, out)
}

func (run *replayRun) read(in io.Reader) ([]trace.Numbered, []trace.Fault, error) {
	if run.trace == "-" {
		return trace.ReadAll(in, "standard input", run.limit)
	}
	f, err := os.Open(run.trace)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the trace: %w", err)
	}
	defer f.Close()
	return trace.ReadAll(f, run.trace, run.limit)
}

func (run *replayRun) readBaseline() (report.Baseline, error) {
	if run.baseline == "" {
		return nil, nil
	}
	f, err := os.Open(run.baseline)
	if err != nil {
		return nil, fmt.Errorf("opening the baseline: %w", err)
	}
	defer f.Close()
	b, err := report.ReadBaseline(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", run.baseline, err)
	}
	return b, nil
}

// meet asks the server what the command line leaves open. It returns a client for
// the model.
func (run *replayRun) meet(ctx context.Context, server *client.Client, errOut io.Writer) (*client.Client, error) {
	models, err := server.Models(ctx)
	if err != nil {
		return nil, fmt.Errorf("asking for models: %w", err)
	}
	var names []string
	for _, m := range models {
		names = append(names, m.Name)
		if m.Name == run.client.Model || run.client.Model == "" && len(models) == 1 {
			run.client.Model, run.options.MaxTokens = m.Name, m.MaxTokens
		}
	}
	if run.client.Model == "" {
		return nil, fmt.Errorf("give --model: the server has %s", strings.Join(names, ", "))
	}
	server = client.New(run.client)
	if run.options.EngineBlock == 0 {
		if run.options.EngineBlock, err = server.BlockTokens(ctx); err != nil {
			return nil, fmt.Errorf("asking for the cache's block (give --block): %w", err)
		}
	}
	if err := run.options.Validate(); err != nil {
		return nil, fmt.Errorf("--scale: %w", err)
	}
	if run.vocabulary == 0 {
		if run.vocabulary, err = server.Vocabulary(ctx); err != nil {
			return nil, fmt.Errorf("asking for the vocabulary (give --vocabulary): %w", err)
		}
	}
	if run.reset {
		if err := server.Reset(ctx); err != nil {
			return nil, fmt.Errorf("emptying the server's caches: %w", err)
		}
	}
	fmt.Fprintf(errOut, "%s: blocks of %d tokens, prompts of tokens %d to %d\n", run.client.Model, run.options.EngineBlock, run.vocabulary/specialShare, run.vocabulary-1)
	return server, nil
}

// write writes what the command line asks for.
func (run *replayRun) write(r *report.Report, out io.Writer) error {
	write := r.WriteText
	if run.json {
		write = r.WriteJSON
	}
	errs := []error{write(out)}
	for _, file := range []struct {
		name  string
		write func(io.Writer) error
	}{{run.csv, r.WriteCSV}, {run.html, r.WriteHTML}} {
		if file.name != "" {
			errs = append(errs, writeFile(file.name, file.write))
		}
	}
	return errors.Join(errs...)
}

// writeFile writes a file and makes its directory.
func writeFile(name string, write func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("writing a file: %w", err)
	}
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("writing a file: %w", err)
	}
	err = write(f)
	if closeErr := f.Close(); err == nil && closeErr != nil {
		err = fmt.Errorf("writing a file: %w", closeErr)
	}
	return err
}
