package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/bench/replay/report"
	"github.com/mooncake-sidecar/sidecar/bench/replay/rounds"
)

func roundsCommand(code *int) *cli.Command {
	return &cli.Command{
		Name:      "rounds",
		Usage:     "sum up replays of one trace that were made in rounds",
		ArgsUsage: "SYSTEM@ROUND=CSV ...",
		Description: `Reads what "replay --csv" wrote of replays of one trace, for each store in each
round, and prints cached tokens beside what they must be, and times to first token
relative to one store's, with 95 % intervals over rounds and requests.
bench/replay/live.py makes such replays.

Example:

  mooncake-bench rounds --baseline none none@1=none-1.csv ours@1=ours-1.csv`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "baseline", Usage: "compare with `SYSTEM`", Value: "none"},
			&cli.StringFlag{Name: "trace", Usage: "call the trace `NAME`", Value: "trace"},
			&cli.Uint64Flag{Name: "seed", Usage: "draw intervals from `SEED`", Value: 1},
			&cli.BoolFlag{Name: "json", Usage: "print a line of JSON"},
			&cli.StringFlag{Name: "html", Usage: "write a page with plots to `FILE`"},
		},
		Action: func(c *cli.Context) error {
			if !c.Args().Present() {
				return errors.New("rounds takes replays, each as SYSTEM@ROUND=CSV")
			}
			var named []namedReplay
			for _, word := range c.Args().Slice() {
				n, err := parseReplay(word)
				if err != nil {
					return err
				}
				named = append(named, n)
			}
			*code = exitFailed
			var replays []rounds.Replay
			for _, n := range named {
				requests, err := readRequests(n.file)
				if err != nil {
					return err
				}
				replays = append(replays, rounds.Replay{System: n.system, Round: n.round, Requests: requests})
			}
			result, err := rounds.Sum(c.String("trace"), c.String("baseline"), c.Uint64("seed"), replays)
			if err != nil {
				return err
			}
			if name := c.String("html"); name != "" {
				if err := writeFile(name, result.WriteHTML); err != nil {
					return err
				}
			}
			if c.Bool("json") {
				return result.WriteJSON(c.App.Writer)
			}
			return result.WriteText(c.App.Writer)
		},
	}
}

// namedReplay is SYSTEM@ROUND=CSV.
type namedReplay struct {
	system, file string
	round        int
}

func parseReplay(word string) (namedReplay, error) {
	name, file, ok := strings.Cut(word, "=")
	system, number, ok2 := strings.Cut(name, "@")
	round, err := strconv.Atoi(number)
	if !ok || !ok2 || err != nil || system == "" || file == "" {
		return namedReplay{}, fmt.Errorf("%q: want SYSTEM@ROUND=CSV", word)
	}
	return namedReplay{system, file, round}, nil
}

func readRequests(name string) ([]report.Request, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("opening a replay: %w", err)
	}
	defer f.Close()
	requests, err := report.ReadRequests(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return requests, nil
}
