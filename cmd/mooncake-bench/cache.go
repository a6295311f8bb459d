package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/bench/cache"
	"github.com/mooncake-sidecar/sidecar/internal/evict"
)

// progressInterval is how often a long replay says how far it is.
const progressInterval = 2 * time.Second

// cacheRun is what the command line asks for.
type cacheRun struct {
	trace      string
	policies   []string
	order      cache.Order
	capacities []int // 0 for as many as the trace has blocks
	json       bool
}

func cacheCommand(code *int) *cli.Command {
	return &cli.Command{
		Name:  "cache",
		Usage: "replay a trace against an eviction policy and count hits",
		Description: `Reads a trace in Mooncake's format (one request a line: timestamp, input_length,
output_length, hash_ids) and replays it against the eviction policy that the
daemon runs, or against min, the most that any policy can hit. A request hits the
blocks before the first that is missing; then its blocks are touched or inserted
from the leaf (--order rev) or the root (--order fwd) on. With --json it prints
one object a line for each policy and capacity. A refused trace names the line.

Policies: ` + strings.Join(evict.Names(), ", ") + `, min.

Example:

  mooncake-bench cache --trace conversation_trace.jsonl --policy lru --capacity 10000 --json
  {"policy":"lru","order":"rev","capacity":10000,"requests":12031,"blocks":288500,"hit_blocks":61046,...}

  mooncake-bench cache --trace conversation_trace.jsonl --policy lru,hazard,min --capacity 5000,10000,infinite`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "trace", Usage: "read requests from `FILE`, - for standard input", Required: true},
			&cli.StringFlag{Name: "policy", Usage: "replay against `POLICY,...`", Value: evict.Default},
			&cli.StringFlag{Name: "order", Usage: "touch and insert a request's blocks in `ORDER`: fwd or rev", Value: string(cache.Reverse)},
			&cli.StringFlag{Name: "capacity", Usage: "with room for `BLOCKS,...`, or infinite", Required: true},
			&cli.BoolFlag{Name: "json", Usage: "print a line of JSON for each replay"},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("cache takes no argument %q", c.Args().First())
			}
			run, err := newCacheRun(c)
			if err != nil {
				return err
			}
			*code = exitFailed
			ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM)
			defer stop()
			return run.do(ctx, c.App.Reader, c.App.Writer, c.App.ErrWriter)
		},
	}
}

// newCacheRun checks the command line.
func newCacheRun(c *cli.Context) (*cacheRun, error) {
	run := &cacheRun{trace: c.String("trace"), policies: list(c.String("policy")), order: cache.Order(c.String("order")), json: c.Bool("json")}
	for _, p := range run.policies {
		if p != cache.MIN && !evict.Known(p) {
			return nil, fmt.Errorf("--policy: %w: %q; want %s or %s", evict.ErrUnknownPolicy, p, strings.Join(evict.Names(), ", "), cache.MIN)
		}
	}
	if run.order != cache.Forward && run.order != cache.Reverse {
		return nil, fmt.Errorf("--order: %q; want %s or %s", run.order, cache.Forward, cache.Reverse)
	}
	for _, word := range list(c.String("capacity")) {
		if word == "infinite" {
			run.capacities = append(run.capacities, 0)
			continue
		}
		n, err := strconv.ParseUint(word, 10, 31)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("--capacity: %q; want a number of blocks from 1 on, or infinite", word)
		}
		run.capacities = append(run.capacities, int(n))
	}
	if len(run.policies) == 0 || len(run.capacities) == 0 {
		return nil, errors.New("--policy and --capacity need at least one value each")
	}
	return run, nil
}

func (run *cacheRun) do(ctx context.Context, in io.Reader, out, errOut io.Writer) error {
	trace, err := run.read(in)
	if err != nil {
		return err
	}
	var results []cache.Result
	for _, capacity := range run.capacities {
		if capacity == 0 {
			capacity = trace.Unique()
		}
		for _, policy := range run.policies {
			result, err := run.replay(ctx, trace, policy, capacity, errOut)
			if err != nil {
				return fmt.Errorf("replaying %s at %d blocks: %w", policy, capacity, err)
			}
			results = append(results, result)
			if run.json {
				if err := json.NewEncoder(out).Encode(&result); err != nil {
					return fmt.Errorf("printing the result: %w", err)
				}
			}
		}
	}
	if run.json {
		return nil
	}
	return printCache(results, out)
}

func (run *cacheRun) read(in io.Reader) (*cache.Trace, error) {
	if run.trace == "-" {
		return cache.Read(in, "standard input")
	}
	f, err := os.Open(run.trace)
	if err != nil {
		return nil, fmt.Errorf("reading the trace: %w", err)
	}
	defer f.Close()
	return cache.Read(f, run.trace)
}

func (run *cacheRun) replay(ctx context.Context, trace *cache.Trace, policy string, capacity int, errOut io.Writer) (cache.Result, error) {
	next := time.Now().Add(progressInterval)
	progress := func(done int) {
		if now := time.Now(); now.After(next) {
			next = now.Add(progressInterval)
			fmt.Fprintf(errOut, "%s at %d blocks: %d of %d requests\n", policy, capacity, done, trace.Requests())
		}
	}
	if policy == cache.MIN {
		return cache.Best(ctx, trace, capacity, progress)
	}
	p, err := evict.New(policy, min(capacity, trace.Unique()))
	if err != nil {
		return cache.Result{}, err
	}
	return cache.Replay(ctx, trace, p, capacity, run.order, progress)
}

func printCache(results []cache.Result, out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "policy\torder\tcapacity\tblocks\thit\tratio\ttokens\thit\tratio\tfull hits\t")
	for i := range results {
		r := &results[i]
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%.4f\t%d\t%d\t%.4f\t%d\t\n",
			r.Policy, r.Order, r.Capacity, r.Blocks, r.HitBlocks, r.BlockHitRatio, r.Tokens, r.HitTokens, r.TokenHitRatio, r.FullHits)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("printing the results: %w", err)
	}
	return nil
}
