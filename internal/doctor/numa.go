package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/topology"
)

// numa says between which NUMA nodes a new store would be divided. What a running
// one has on each node is for ctl stats to say.
func numa(_ context.Context, s *System, c *Settings) []Finding {
	const where = "/sys/devices/system/node"
	nodes, left, err := topology.MemoryNodes(s.Root)
	switch {
	case err != nil:
		return found(Warning, fmt.Sprintf("the NUMA nodes can't be read: %v", err), where, "numa: off, and tell us")
	case len(nodes)+len(left) < 2:
		return ok("memory is equally far from all cores", where)
	}
	var all []Finding
	for _, l := range left {
		all = append(all, Finding{Severity: Info, What: fmt.Sprintf("NUMA node %d gets no part of the store: %s", l.Node, l.Why), Where: where})
	}
	if len(nodes) < 2 {
		return append(all, ok(fmt.Sprintf("the store is on NUMA node %s", nodeList(nodes)), where)...)
	}
	if c.NUMA == config.NUMAOff {
		return append(all, found(Info, "the store is not divided between the NUMA nodes "+nodeList(nodes), where, "numa: auto, for copies within a node")...)
	}
	for i := range nodes {
		if nodes[i].RoomBytes() < c.StoreBytes/uint64(len(nodes)) {
			all = append(all, Finding{
				Severity: Info, What: fmt.Sprintf("NUMA node %d has room for %s, less than an even part of the store; others get more", nodes[i].ID, size(nodes[i].RoomBytes())),
				Where: where, Do: "lower store_bytes, or free memory there: numactl --hardware",
			})
		}
	}
	return append(all, ok(fmt.Sprintf("a store of %s is divided between the NUMA nodes %s", size(c.StoreBytes), nodeList(nodes)), where)...)
}

// nodeList names nodes with what they have room for.
func nodeList(nodes []topology.Node) string {
	var names []string
	for i := range nodes {
		names = append(names, fmt.Sprintf("%d (room for %s)", nodes[i].ID, size(nodes[i].RoomBytes())))
	}
	return strings.Join(names, ", ")
}
