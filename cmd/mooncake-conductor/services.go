package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/cmd/internal/command"
	"github.com/mooncake-sidecar/sidecar/conductor/api"
	"github.com/mooncake-sidecar/sidecar/internal/config"
)

func servicesCommand(cfg func() *config.ConductorConfig) command.Subcommand {
	return command.Subcommand{
		Name: "services", Usage: "list the streams of KV events that are followed, and how much of each is known",
		Description: "Examples:\nmooncake-conductor services\nmooncake-conductor services --url http://10.0.0.9:13333 --json\n\nExit code 3 when no conductor answers.",
		Settings:    ownSettings(),
		Flags:       askFlags(),
		Run: func(c *cli.Context, out io.Writer) error {
			client, err := clientOf(c, cfg())
			if err != nil {
				return err
			}
			services, err := client.Services(c.Context)
			if err != nil {
				return coded(err)
			}
			if c.Bool("json") {
				return command.PrintJSON(out, services)
			}
			return printServices(out, services, time.Now())
		},
	}
}

// printServices prints a table, and below it what is wrong.
func printServices(out io.Writer, services []api.ServiceAnswer, now time.Time) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "INSTANCE\tTENANT\tRANK\tTYPE\tMODEL\tBLOCK\tSTATE\tEVENTS\tHEARD\tBLOCKS\tENDPOINT")
	var faults strings.Builder
	for i := range services {
		s := &services[i]
		model, heard := s.ModelName, "never"
		if s.LoraName != "" {
			model += "+" + s.LoraName
		}
		if s.HeardMS != 0 {
			heard = now.Sub(time.UnixMilli(s.HeardMS)).Round(time.Second).String() + " ago"
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%d\t%s\t%d\t%s\t%d\t%s\n", s.InstanceID, s.TenantID, s.DPRank, s.Type, model, s.BlockSize,
			s.State, s.Next, heard, int64(s.Blocks.Stored)-int64(s.Blocks.Removed), s.Endpoint) //nolint:gosec // blocks
		for _, text := range append([]string{s.Reason}, s.Warnings...) {
			if text != "" {
				fmt.Fprintf(&faults, "%s, rank %d: %s\n", s.InstanceID, s.DPRank, text)
			}
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(out, faults.String())
	return err
}
