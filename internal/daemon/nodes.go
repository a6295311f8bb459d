package daemon

import (
	"io/fs"
	"log/slog"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/topology"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
	"github.com/mooncake-sidecar/sidecar/store/embedded/client"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// storeNodes returns the NUMA nodes that a new store's memory is divided between,
// with what each has room for. None: the store leaves it to the kernel.
func storeNodes(root fs.FS, mode string, log *slog.Logger) []embedded.NodeRoom {
	if mode == config.NUMAOff {
		return nil
	}
	nodes, left, err := topology.MemoryNodes(root)
	if err != nil {
		log.Warn("the machine's NUMA nodes can't be read; the store is not divided between them", "error", err)
		return nil
	}
	for _, l := range left {
		log.Info("a NUMA node gets no part of the store", "node", l.Node, "reason", l.Why)
	}
	rooms := make([]embedded.NodeRoom, 0, len(nodes))
	for i := range nodes {
		if i == embedded.MaxNodes {
			log.Info("NUMA nodes get no part of the store: there are too many", "nodes", len(nodes), "at_most", embedded.MaxNodes)
			break
		}
		rooms = append(rooms, embedded.NodeRoom{Node: nodes[i].ID, Bytes: nodes[i].RoomBytes()})
	}
	return rooms
}

// nearDevice tells the store next to which NUMA node the engine of a registration
// works. There its KV memory is, if it is in the host's.
type nearDevice struct {
	worker.Device
	root   fs.FS
	chunks *client.Client
	log    *slog.Logger
}

// Map implements worker.Device.
func (d nearDevice) Map(pid int, reg *connector.Register, fds []int) (worker.Mapping, error) {
	node := nodeOf(d.root, pid)
	d.chunks.SetNode(node)
	d.log.Debug("the engine's NUMA node", "pid", pid, "node", node)
	return d.Device.Map(pid, reg, fds)
}

// nodeOf returns the one NUMA node whose cores an engine process, or else this
// one, is bound to, topology.Unknown when it may run on several.
func nodeOf(root fs.FS, pid int) int {
	nodes, err := topology.Nodes(root)
	if err != nil {
		return topology.Unknown
	}
	if allowed, err := topology.AllowedOf(root, pid); err == nil {
		if node := topology.NodeOf(nodes, allowed.CPUs); node != topology.Unknown {
			return node
		}
	}
	allowed, err := topology.Allowed(root)
	if err != nil {
		return topology.Unknown
	}
	return topology.NodeOf(nodes, allowed.CPUs)
}
