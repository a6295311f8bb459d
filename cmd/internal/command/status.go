package command

import (
	"fmt"
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
		return printJSON(d.Out, s)
	}
	return d.printStatus(s)
}

func (d *Daemon) printStatus(s *daemon.Status) error {
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
	for _, line := range lines {
		if _, err := fmt.Fprintf(d.Out, "%-20s %s\n", line[0], line[1]); err != nil {
			return err
		}
	}
	return nil
}
