package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/bench/suite"
)

func suiteCommand(code *int) *cli.Command {
	return &cli.Command{
		Name:  "suite",
		Usage: "run all benchmarks and write one report",
		Description: `Runs the project's benchmarks one after the other, each with a limit of time, and
writes report.html, which opens without a network, and report.json: medians, spread,
ratios and samples, targets beside them, and what else the machine did meanwhile. What
fails or is not possible here is told, and the rest goes on. Run it in the repository;
"make bench" prepares what it needs. Exit codes: 0 every benchmark that is possible
here was done, 1 no report, 2 wrong command line, 3 a report in which some failed.

Benchmarks: ` + strings.Join(suite.Names(), ", ") + `.

Example:

  mooncake-bench suite --traces ../traces

  mooncake-bench suite --budget full --only lookup,hooks`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "budget", Usage: "quick (a quarter of an hour at most) or full (hours)", Value: string(suite.Quick)},
			&cli.StringFlag{Name: "only", Usage: "run `NAME,...`"},
			&cli.StringFlag{Name: "out", Usage: "write to `DIR`", Value: "build/bench"},
			&cli.StringFlag{Name: "root", Usage: "the repository's `DIR`", Value: "."},
			&cli.StringFlag{Name: "binaries", Usage: "`DIR` of the daemons; default bin of the repository"},
			&cli.StringFlag{Name: "traces", Usage: "`DIR` of Mooncake's public traces", EnvVars: []string{"MOONCAKE_SIDECAR_TRACES"}},
			&cli.StringFlag{Name: "python", Usage: "`FILE` with vLLM; default .venv/bin/python of the repository", EnvVars: []string{"MOONCAKE_SIDECAR_PYTHON"}},
			&cli.BoolFlag{Name: "json", Usage: "print the report as JSON, too"},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("suite takes no argument %q", c.Args().First())
			}
			s, err := suiteSetting(c)
			if err != nil {
				return err
			}
			parts, err := suite.Choose(list(c.String("only")))
			if err != nil {
				return fmt.Errorf("--only: %w", err)
			}
			*code = exitFailed
			ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM)
			defer stop()
			report, err := suite.Run(ctx, s, parts, func(line string) { fmt.Fprintln(c.App.ErrWriter, line) })
			if err != nil {
				return err
			}
			if err := errors.Join(writeFile(s.File("report.json"), report.WriteJSON), writeFile(s.File("report.html"), report.WriteHTML)); err != nil {
				return err
			}
			show := report.WriteText
			if c.Bool("json") {
				show = report.WriteJSON
			}
			if err := show(c.App.Writer); err != nil {
				return err
			}
			fmt.Fprintf(c.App.ErrWriter, "the report is %s\n", s.File("report.html"))
			if !report.Whole() {
				*code = exitIncomplete
				return errors.New("not every benchmark was done; the report says which")
			}
			return nil
		},
	}
}

// suiteSetting finds what parts need; all of it is absolute, for parts run in the
// repository.
func suiteSetting(c *cli.Context) (*suite.Setting, error) {
	s := &suite.Setting{Budget: suite.Budget(c.String("budget"))}
	if s.Budget != suite.Quick && s.Budget != suite.Full {
		return nil, fmt.Errorf("--budget: %q; want %s or %s", s.Budget, suite.Quick, suite.Full)
	}
	var err error
	if s.Bench, err = os.Executable(); err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	for _, path := range []struct {
		into         *string
		given, usual string
	}{
		{&s.Root, c.String("root"), "."},
		{&s.Out, c.String("out"), ""},
		{&s.Binaries, c.String("binaries"), filepath.Join(c.String("root"), "bin")},
		{&s.Python, c.String("python"), filepath.Join(c.String("root"), ".venv", "bin", "python")},
		{&s.Traces, c.String("traces"), ""},
	} {
		if *path.into = path.given; path.given == "" {
			*path.into = path.usual
		}
		if *path.into == "" {
			continue
		}
		if *path.into, err = filepath.Abs(*path.into); err != nil {
			return nil, fmt.Errorf("finding %s: %w", *path.into, err)
		}
	}
	if _, err := os.Stat(filepath.Join(s.Root, "bench", "suite")); err != nil {
		return nil, fmt.Errorf("%s is not this project's repository (%w): run there, or give --root", s.Root, err)
	}
	return s, nil
}
