package main

import (
	"encoding/json"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/cmd/internal/command"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/daemon"
	"github.com/mooncake-sidecar/sidecar/internal/topology"
)

const topologyHelp = `Shows the machine's NUMA nodes, GPUs and network adapters, how far each is from
the others, and what of it belongs to the worker of --device. Run it in the
environment and container of the engine: CUDA_VISIBLE_DEVICES, the cpuset and
which devices are seen count. It changes nothing and needs no daemon.

Examples:

   mooncake-worker topology
   mooncake-worker --device cuda-3 topology
   mooncake-worker --device cuda-3 topology --json | jq .worker.rdma

Exit code 0: shown; 1: CUDA has no such device here, or sysfs can't be read;
2: bad flags.`

// report is the JSON form.
type report struct {
	*topology.Machine
	Matrix topology.Matrix `json:"matrix"`
	// Device is the worker's, and Worker what belongs to it; nil with Error.
	Device string              `json:"device"`
	Worker *topology.Placement `json:"worker"`
	Error  string              `json:"error,omitempty"`
	// Affinity is the setting, auto or off.
	Affinity string `json:"affinity"`
}

// topologyCommand shows the machine as workers see it.
func topologyCommand(cfg func() *config.WorkerConfig, machine func() (*topology.Machine, error)) command.Subcommand {
	return command.Subcommand{
		Name: "topology", Usage: "GPUs, NUMA nodes and network adapters, and which of them belong to a worker", Description: topologyHelp,
		Flags: []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "print JSON"}},
		Run: func(c *cli.Context, out io.Writer) error {
			m, err := machine()
			if err != nil {
				return err
			}
			r := report{Machine: m, Matrix: m.Matrix(), Device: cfg().Device, Affinity: cfg().Affinity}
			placement, unplaced := m.Assign(daemon.WantedBy(cfg(), os.LookupEnv))
			if unplaced == nil {
				r.Worker = &placement
			} else {
				r.Error = unplaced.Error()
			}
			if c.Bool("json") {
				encoder := json.NewEncoder(out)
				encoder.SetIndent("", "  ")
				err = encoder.Encode(r)
			} else {
				err = printTopology(out, &r)
			}
			if err != nil {
				return err
			}
			return unplaced
		},
	}
}
