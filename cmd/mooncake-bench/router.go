package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/bench/router"
)

func routerCommand(code *int) *cli.Command {
	return &cli.Command{
		Name:  "router",
		Usage: "measure what the conductor's router adds to the first byte of an answer",
		Description: `Sends equal requests straight to engines and through the router by turns, in an
open loop. The engines answer at once; router, index and scheduler are the real
ones. Prints medians and tails of the time to the first byte, and the
difference of the medians with its 95 % interval: for prompts with token ids,
for texts whose ids are remembered, and for texts that are tokenised first.

Example:

  mooncake-bench router
  mooncake-bench router --rate 200 --tokens 8192 --each 1m --json`,
		Flags: []cli.Flag{
			&cli.Float64Flag{Name: "rate", Usage: "`N` requests a second through the router, and as many straight", Value: 200},
			&cli.DurationFlag{Name: "each", Usage: "measure each kind of prompts for this `TIME`", Value: 20 * time.Second},
			&cli.IntFlag{Name: "engines", Usage: "`N` engines", Value: 3},
			&cli.IntFlag{Name: "tokens", Usage: "prompts of `N` tokens", Value: 1024},
			&cli.Uint64Flag{Name: "seed", Usage: "draw prompts from this `SEED`", Value: 1},
			&cli.BoolFlag{Name: "json", Usage: "print one JSON object"},
		},
		Action: func(c *cli.Context) error {
			o := router.Options{
				Rate: c.Float64("rate"), Each: c.Duration("each"), Engines: c.Int("engines"), PromptTokens: c.Int("tokens"), Seed: c.Uint64("seed"),
				Progress: func(what string) { fmt.Fprintln(c.App.ErrWriter, what) },
			}
			if c.Args().Present() || o.Rate <= 0 || o.Each < time.Second || o.Engines < 1 || o.PromptTokens < 16 {
				return fmt.Errorf("router takes no argument, and --rate above 0, --each of a second or more, --engines of 1 and --tokens of 16 or more")
			}
			*code = exitFailed
			ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM)
			defer stop()
			result, err := router.Run(ctx, &o)
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
