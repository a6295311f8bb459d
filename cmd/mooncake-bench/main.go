// Command mooncake-bench replays, compares and measures. Its subcommands live in
// the packages under bench; here are flags and exit codes.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/bench/coordcases"
	"github.com/mooncake-sidecar/sidecar/internal/version"
)

// Exit codes: 1 for a run that failed, 2 for a command line that can't be run.
const (
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr))
}

// run is main without the process.
func run(args []string, in io.Reader, out, errOut io.Writer) int {
	code := exitUsage // until a command's action begins
	app := &cli.App{
		Name:            "mooncake-bench",
		Usage:           "replay, compare and measure KV-cache stores",
		Version:         version.Version,
		HideHelpCommand: true,
		Reader:          in,
		Writer:          out,
		ErrWriter:       errOut,
		ExitErrHandler:  func(*cli.Context, error) {},
		Commands: []*cli.Command{
			suiteCommand(&code), coordinatorCommand(&code), compareCommand(&code), datapathCommand(&code), cacheCommand(&code),
			lookupCommand(&code), replayCommand(&code), generateCommand(&code), simCommand(&code), indexerCommand(&code), retentionCommand(&code), roundsCommand(&code), routerCommand(&code),
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("no subcommand %q; see mooncake-bench --help", c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
	}
	if err := app.Run(args); err != nil {
		fmt.Fprintf(errOut, "mooncake-bench: %v\n", err)
		return code
	}
	return 0
}

func coordinatorCommand(code *int) *cli.Command {
	return &cli.Command{
		Name:  "coordinator",
		Usage: "answer hit-length and mask questions, one line of JSON a case",
		Description: `Reads a JSON array of cases, or one case a line, and writes one line a case:
{"hit": ..., "masks": ...} for "find", {"masks": ...} for "store_mask" and
"lookup_mask", {"hit": ..., "tails": ...} for "lookup". Expected answers in the
input are ignored.

Example:

  mooncake-bench coordinator --cases coordinator_vectors.json > answers.jsonl

  echo '{"op":"find","groups":[{"kind":"full","b":16}],"L":16,"h":16,
         "N":4,"exists":[[0,0],[0,1]],"M":64,"apply_eagle":true}' |
      mooncake-bench coordinator --cases -
  {"hit":32,"masks":[[1,1]]}`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "cases", Usage: "read the cases from `FILE`, - for standard input", Required: true},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("coordinator takes no argument %q", c.Args().First())
			}
			*code = exitFailed
			return answerCases(c.String("cases"), c.App.Reader, c.App.Writer)
		},
	}
}

func answerCases(name string, in io.Reader, out io.Writer) error {
	if name == "-" {
		return coordcases.Run(in, out)
	}
	file, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("opening the cases: %w", err)
	}
	defer file.Close()
	if err := coordcases.Run(file, out); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
