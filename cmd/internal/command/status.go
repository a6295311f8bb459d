package command

import (
	"fmt"
	"maps"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/daemon"
)

func (d *Daemon) status(c *cli.Context) error {
	if _, _, err := d.configure(c); err != nil {
		return err
	}
	s, err := d.Status(c.Context)
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return PrintJSON(d.Out, s)
	}
	return d.printStatus(s)
}

func (d *Daemon) printStatus(s *daemon.Status) error {
	if s.Conductor != nil {
		return d.printConductor(s)
	}
	lines := [][2]string{
		{s.Daemon, s.Version},
		{"pid", fmt.Sprint(s.PID)},
		{"socket", s.Socket},
		{"autostarted", fmt.Sprint(s.Autostarted)},
		{"store ready", fmt.Sprint(s.StoreReady)},
	}
	if st := s.Store; st != nil {
		lines = append(lines, [][2]string{
			{"chunks", fmt.Sprint(st.Chunks)},
			{"namespaces", fmt.Sprint(st.Namespaces)},
			{"capacity", config.Size(st.CapacityBytes).String()},
			{"leased bytes", fmt.Sprint(st.LeasedBytes)},
			{"open reads, puts", fmt.Sprintf("%d, %d", st.OpenReads, st.OpenPuts)},
			{"workers", fmt.Sprint(st.Clients)},
			{"workers awaited", fmt.Sprint(st.UndeclaredClients)},
		}...)
		var names []string
		for name := range st.Counters {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			lines = append(lines, [2]string{name, fmt.Sprint(st.Counters[name])})
		}
	}
	return d.printLines(lines)
}

func (d *Daemon) printLines(lines [][2]string) error {
	for _, line := range lines {
		if _, err := fmt.Fprintf(d.Out, "%-20s %s\n", line[0], line[1]); err != nil {
			return err
		}
	}
	return nil
}

func (d *Daemon) printConductor(s *daemon.Status) error {
	index := s.Conductor
	lines := [][2]string{
		{s.Daemon, s.Version}, {"address", s.Socket}, {"ready", fmt.Sprint(index.Ready)}, {"streams", fmt.Sprint(index.Services)},
	}
	for _, reason := range index.Reasons {
		lines = append(lines, [2]string{"not ready", reason})
	}
	for _, state := range slices.Sorted(maps.Keys(index.States)) {
		lines = append(lines, [2]string{"  " + state, fmt.Sprint(index.States[state])})
	}
	most := "no bound"
	if index.MaxBytes > 0 {
		most = "of " + config.Size(index.MaxBytes).String() //nolint:gosec // above 0
	}
	return d.printLines(append(lines, [][2]string{
		{"blocks", fmt.Sprint(index.Blocks)},
		{"index bytes", fmt.Sprintf("%d, %s", index.Bytes, most)},
		{"queries", fmt.Sprint(index.Queries)},
		{"tokens asked", fmt.Sprint(index.TokensAsked)},
		{"tokens matched", fmt.Sprint(index.TokensMatched)},
	}...))
}
