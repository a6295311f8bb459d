package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/topology"
)

const legend = `X: itself   PIX: at most one PCIe switch between   PXB: several PCIe bridges   PHB: the host bridge
NODE: host bridges of one NUMA node   SYS: the link between NUMA nodes, or not known`

// section is a titled table, its cells parted by tabs.
func section(out io.Writer, title string, rows ...string) {
	fmt.Fprintln(out, title)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, "  "+row)
	}
	_ = w.Flush() // the caller's writer keeps the error
	fmt.Fprintln(out)
}

// printTopology writes the tables for people.
func printTopology(out io.Writer, r *report) error {
	var b strings.Builder
	printNodes(&b, r)
	printDevices(&b, r)
	if len(r.Matrix.Devices) > 1 {
		printMatrix(&b, r)
	}
	printWorker(&b, r)
	for _, note := range r.Notes {
		fmt.Fprintln(&b, "note: "+cell(note))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func printNodes(out io.Writer, r *report) {
	if len(r.Nodes) == 0 {
		section(out, "NUMA nodes: none known")
		return
	}
	rows := []string{"NODE\tCPUS\tMEMORY\tFREE\tDISTANCES"}
	for i := range r.Nodes {
		n := &r.Nodes[i]
		distances := strings.Trim(fmt.Sprint(n.Distances), "[]")
		rows = append(rows, fmt.Sprintf("%d\t%s\t%s\t%s\t%s", n.ID, orDash(n.CPUs.String()), memory(n.MemoryBytes), memory(n.FreeBytes), orDash(distances)))
	}
	section(out, "NUMA nodes", rows...)
	if len(r.Nodes) > 1 && r.Allowed.CPUs != nil {
		section(out, fmt.Sprintf("This process may use CPUs %s and memory of nodes %s.", r.Allowed.CPUs, r.Allowed.Nodes))
	}
}

func printDevices(out io.Writer, r *report) {
	if len(r.GPUs) == 0 {
		section(out, "GPUs: none")
	} else {
		rows := []string{"GPU\tPCI\tNODE\tNAME\tUUID"}
		for i := range r.GPUs {
			g := &r.GPUs[i]
			rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s\t%s", g.Label(), orDash(string(g.Address)), node(g.Node), orDash(cell(g.Name)), orDash(cell(g.UUID))))
			for _, part := range g.MIG {
				rows = append(rows, fmt.Sprintf("\t\t\tMIG %d/%d\t%s", part.GPUInstance, part.ComputeInstance, cell(part.UUID)))
			}
		}
		section(out, "GPUs, as the "+r.source()+" lists them", rows...)
	}
	if len(r.NICs) == 0 {
		section(out, "Network adapters: none on PCI")
		return
	}
	rows := []string{"ADAPTER\tPCI\tNODE\tLINK\tINTERFACES"}
	for i := range r.NICs {
		n := &r.NICs[i]
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s\t%s", cell(n.Label()), orDash(string(n.Address)), node(n.Node), link(n), orDash(cell(strings.Join(n.Interfaces, " ")))))
	}
	section(out, "Network adapters", rows...)
}

// source names the list of GPUs' origin.
func (r *report) source() string {
	if r.GPUSource == topology.SourceDriver {
		return "driver (NVML)"
	}
	return "PCI bus (sysfs; NVML does not answer)"
}

func link(n *topology.NIC) string {
	if n.RDMA == "" {
		return "no RDMA"
	}
	state := "down"
	if n.Active {
		state = "active"
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s Gb/s %s", n.LinkLayer, strconv.FormatFloat(n.RateGbps, 'g', -1, 64), state))
}

func printMatrix(out io.Writer, r *report) {
	names := make([]string, len(r.Matrix.Devices))
	for i, name := range r.Matrix.Devices {
		names[i] = cell(name)
	}
	rows := []string{"\t" + strings.Join(names, "\t")}
	for i, row := range r.Matrix.Classes {
		line := names[i]
		for _, class := range row {
			line += "\t" + class.String()
		}
		rows = append(rows, line)
	}
	section(out, "Distances", append(rows, strings.Split(legend, "\n")...)...)
}

func printWorker(out io.Writer, r *report) {
	p := r.Worker
	if p == nil {
		section(out, fmt.Sprintf("Worker %s: nothing belongs to it: %s", r.Device, cell(r.Error)))
		return
	}
	threads := "left as they are"
	switch {
	case p.CPUs == nil:
	case r.Affinity == config.AffinityOff:
		threads += " (affinity: off), not kept to CPUs " + p.CPUs.String()
	default:
		threads = "kept to CPUs " + p.CPUs.String()
	}
	rdma := orDash(cell(p.RDMA))
	if p.RDMA != "" {
		rdma += " (" + p.Distance.String() + ")"
	}
	rows := []string{"GPU\t" + orDash(strings.TrimSpace(p.GPU+" "+cell(p.MIG))), "NUMA node\t" + node(p.Node), "threads\t" + threads, "RDMA device\t" + rdma}
	for i, why := range p.Why {
		label := ""
		if i == 0 {
			label = "why"
		}
		rows = append(rows, label+"\t"+cell(why))
	}
	section(out, "Worker "+r.Device, rows...)
}

func node(id int) string {
	if id == topology.Unknown {
		return "-"
	}
	return strconv.Itoa(id)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// memory writes a size in whole GiB, or MiB below one.
func memory(bytes uint64) string {
	unit := uint64(1 << 30)
	if bytes < unit {
		unit = 1 << 20
	}
	if bytes < unit {
		return "-"
	}
	return config.Size(bytes / unit * unit).String()
}

// cell keeps what came from outside within its cell.
func cell(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, text)
}
