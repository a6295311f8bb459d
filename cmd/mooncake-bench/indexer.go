package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/bench/indexer"
	"github.com/mooncake-sidecar/sidecar/bench/indexer/subject"
	"github.com/mooncake-sidecar/sidecar/bench/indexer/workload"
)

func indexerCommand(code *int) *cli.Command {
	usual := workload.Default()
	return &cli.Command{
		Name:  "indexer",
		Usage: "measure the index of KV-cache events beside the peers' indexers",
		Description: `Loads the same events of vLLM 0.32 into this project's index and a peer's, and
asks both the same questions, by turns; checks every answer. Prints medians, their
spread, and the ratio of ours to the peer's with its 95 % interval.

--llmd compares libraries, each in a process of its own: prefixindex behind its
decoder, and llm-d-kv-cache v0.9.0. --conductor and --dynamo compare services over
ZeroMQ and HTTP: mooncake-conductor, and dynamo.indexer, in a Python of its own. make
bench-indexer makes both peers and runs both comparisons.

Example:

  mooncake-bench indexer --llmd build/peers/llmd --full 1000000
  mooncake-bench indexer --conductor bin/mooncake-conductor --dynamo build/peers/dynamo/bin/python --threads 2 --json >indexer.json`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "llmd", Usage: "`PROGRAM` that serves llm-d-kv-cache"},
			&cli.StringFlag{Name: "conductor", Usage: "`PROGRAM` mooncake-conductor"},
			&cli.StringFlag{Name: "dynamo", Usage: "`PYTHON` that has dynamo.indexer"},
			&cli.StringFlag{Name: "logs", Usage: "`DIRECTORY` for files of services", Value: "build/bench/indexer"},
			&cli.IntFlag{Name: "blocks", Usage: "load `N` blocks a round", Value: usual.Blocks},
			&cli.IntFlag{Name: "full", Usage: "load `N` blocks before the questions", Value: 5_000_000},
			&cli.IntFlag{Name: "engines", Usage: "of `N` engines", Value: usual.Engines},
			&cli.IntFlag{Name: "share", Usage: "each prompt held by `N` engines", Value: usual.Holders},
			&cli.IntFlag{Name: "event-blocks", Usage: "events of `N` blocks", Value: usual.EventBlocks},
			&cli.IntFlag{Name: "prompt-events", Usage: "prompts of `N` events", Value: usual.PromptEvents},
			&cli.IntSliceFlag{Name: "threads", Usage: "by `N,...` threads", Value: cli.NewIntSlice(1, 2)},
			&cli.IntFlag{Name: "rounds", Usage: "load `N` times", Value: 5},
			&cli.IntFlag{Name: "ask-rounds", Usage: "ask each question `N` times by turns, 0 for no questions", Value: 10},
			&cli.IntSliceFlag{Name: "tokens", Usage: "ask for prompts of `N,...` tokens", Value: cli.NewIntSlice(8<<10, 32<<10, 128<<10)},
			&cli.IntFlag{Name: "holders", Usage: "that `N` engines hold", Value: 8},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
			&cli.BoolFlag{Name: "subject", Usage: "be what is measured, for another mooncake-bench", Hidden: true},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("indexer takes no argument %q", c.Args().First())
			}
			if c.Bool("subject") {
				*code = exitFailed
				return subject.Serve(c.App.Reader, c.App.Writer, &subject.Own{BlockTokens: usual.BlockTokens})
			}
			o, err := indexerOptions(c)
			if err != nil {
				return err
			}
			*code = exitFailed
			ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM)
			defer stop()
			result, err := indexer.Run(ctx, o)
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return result.JSON(c.App.Writer)
			}
			return result.Print(c.App.Writer)
		},
	}
}

// indexerOptions reads the command line.
func indexerOptions(c *cli.Context) (*indexer.Options, error) {
	own, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	load := workload.Default()
	load.Blocks, load.Engines, load.Holders = c.Int("blocks"), c.Int("engines"), c.Int("share")
	load.EventBlocks, load.PromptEvents = c.Int("event-blocks"), c.Int("prompt-events")
	full := load
	full.Blocks = c.Int("full")
	o := &indexer.Options{
		Load: load, Full: full, Threads: c.IntSlice("threads"), Rounds: c.Int("rounds"), Tokens: c.IntSlice("tokens"), Holders: c.Int("holders"),
		AskRounds: c.Int("ask-rounds"), AskTime: time.Second / 4, Seed: 1, Progress: func(what string) { fmt.Fprintln(c.App.ErrWriter, what) },
	}
	if len(o.Threads) == 0 || o.Rounds < 0 || o.AskRounds < 0 || o.Holders < 1 || o.Holders > load.Engines {
		return nil, errors.New("--threads needs a value, --rounds and --ask-rounds none below 0, --holders one between 1 and --engines")
	}
	peer, conductor, python := c.String("llmd"), c.String("conductor"), c.String("dynamo")
	if conductor == "" && python == "" {
		o.Systems = append(o.Systems, indexer.NewLibrary("ours", own, "indexer", "--subject"))
		if peer != "" {
			o.Systems = append(o.Systems, indexer.NewLibrary("llm-d", peer))
		}
		return o, nil
	}
	if peer != "" {
		return nil, errors.New("--llmd is a library, --conductor and --dynamo are services: compare them in two runs")
	}
	if conductor != "" {
		o.Systems = append(o.Systems, indexer.NewService(indexer.Conductor{Program: conductor}, c.String("logs")))
	}
	if python != "" {
		o.Systems = append(o.Systems, indexer.NewService(indexer.Dynamo{Python: python}, c.String("logs")))
	}
	return o, nil
}
