package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/bench/retention"
	"github.com/mooncake-sidecar/sidecar/coordinator"
)

func retentionCommand(code *int) *cli.Command {
	return &cli.Command{
		Name:  "retention",
		Usage: "replay a trace of prompts for models with sliding windows: what storing more windows brings and costs",
		Description: `Replays a trace in Mooncake's format against a store that never evicts, for two
models with sliding windows, and for intervals at which a prompt's windows are
stored ("store_retention"): hits and bytes.

Example:

  mooncake-bench retention --trace conversation_trace.jsonl`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "trace", Usage: "read requests from `FILE`", Required: true},
			&cli.StringFlag{Name: "models", Usage: "for `MODEL,...`", Value: strings.Join(retention.Models(), ",")},
			&cli.BoolFlag{Name: "json", Usage: "print a line of JSON for each replay"},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("retention takes no argument %q", c.Args().First())
			}
			models := list(c.String("models"))
			for _, name := range models {
				if !slices.Contains(retention.Models(), name) {
					return fmt.Errorf("--models: %q; there are %s", name, strings.Join(retention.Models(), ", "))
				}
			}
			*code = exitFailed
			open := func() (io.ReadCloser, error) { return os.Open(c.String("trace")) }
			if c.Bool("json") {
				return retention.Sweep(models, open, func(r retention.Row) error { return json.NewEncoder(c.App.Writer).Encode(&r) })
			}
			w := tabwriter.NewWriter(c.App.Writer, 0, 0, 2, ' ', tabwriter.AlignRight)
			fmt.Fprintln(w, "model\tstore_retention\trequests\thit\tGiB stored\t")
			err := retention.Sweep(models, open, func(r retention.Row) error {
				_, err := fmt.Fprintf(w, "%s\t%s\t%d\t%.4f\t%.1f\t\n", r.Model, intervalName(r.Interval), r.Requests, r.HitShare, float64(r.Bytes)/(1<<30))
				return err
			})
			if err != nil {
				return err
			}
			return w.Flush()
		},
	}
}

// intervalName is the word that the connector's key takes.
func intervalName(interval int) string {
	switch interval {
	case coordinator.RetentionAsEngine:
		return "engine"
	case coordinator.RetentionDense:
		return "dense"
	}
	return strconv.Itoa(interval)
}
