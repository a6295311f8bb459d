package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/cmd/internal/command"
	"github.com/mooncake-sidecar/sidecar/internal/admin/adminpb"
	"github.com/mooncake-sidecar/sidecar/internal/admin/control"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/daemon"
)

// addQuestions adds what changes nothing.
func addQuestions(add addCtl) {
	add("namespaces", "list the namespaces with what they store", `Examples:

   mooncake-lookupd ctl namespaces
   mooncake-lookupd ctl namespaces --json`, ctlNamespaces)
	add("stats", "show memory, chunks, counters, and what other amounts of memory would bring", `Examples:

   mooncake-lookupd ctl stats
   mooncake-lookupd ctl stats --json`, ctlStats)
	add("usage", "show who has how much, by namespace or by salt tag", `Examples:

   mooncake-lookupd ctl usage
   mooncake-lookupd ctl usage --by-tag`, ctlUsage, &cli.BoolFlag{Name: "by-tag", Usage: "by salt tag, of all namespaces together"})
	add("top", "list the prefixes that are used most", `A prefix is a chain of chunks; its first chunk is missing (-) when what came before
it has gone, and then it can't be hit.

Examples:

   mooncake-lookupd ctl top --limit 20
   mooncake-lookupd ctl top --namespace llama-3.1-8b --json`, ctlTop,
		namespaceFlag(), &cli.IntFlag{Name: "limit", Usage: "the most `prefixes` to list", Value: 10})
	add("config", "show the configuration that the daemon runs with, and where each value comes from", `config print shows what a daemon would be started with; this asks the one that runs.

Examples:

   mooncake-lookupd ctl config
   mooncake-lookupd ctl config --json`, ctlConfig)
}

// jsonUsage is one line of namespaces, usage and quota.
type jsonUsage struct {
	Namespace string  `json:"namespace,omitempty"` // digest
	ID        *uint32 `json:"id,omitempty"`
	Model     string  `json:"model,omitempty"`
	Tag       *string `json:"tag,omitempty"`
	Chunks    uint64  `json:"chunks"`
	Bytes     uint64  `json:"bytes"`
	Pinned    uint64  `json:"pinned_bytes"`
	Quota     uint64  `json:"quota_bytes"`
	Refused   *uint64 `json:"refused_puts,omitempty"`
}

func ctlNamespaces(ctx context.Context, op *daemon.Operator, c *cli.Context, out io.Writer) error {
	all, reply, err := namespaceList(ctx, op)
	if err != nil {
		return err
	}
	list, rows := []jsonUsage{}, []string{}
	for i, e := range reply.GetNamespaces() {
		list = append(list, jsonUsage{
			Namespace: hex.EncodeToString(e.GetDigest()), ID: &all[i].ID, Model: all[i].Spec.Model,
			Chunks: e.GetAmount().GetChunks(), Bytes: e.GetAmount().GetBytes(), Pinned: e.GetPinnedBytes(), Quota: e.GetQuotaBytes(),
		})
		rows = append(rows, row(all[i].ID, shortHash(e.GetDigest()), all[i].Spec.Model, e.GetAmount().GetChunks(), sizeText(e.GetAmount().GetBytes()),
			orDash(e.GetPinnedBytes()), orDash(e.GetQuotaBytes())))
	}
	if c.Bool("json") {
		return command.PrintJSON(out, list)
	}
	return table(out, "NAMESPACE\tDIGEST\tMODEL\tCHUNKS\tMEMORY\tPINNED\tQUOTA", rows)
}

type jsonStats struct {
	Capacity   uint64            `json:"capacity_bytes"`
	Prepared   uint64            `json:"prepared_bytes"`
	Used       uint64            `json:"used_bytes"`
	Leased     uint64            `json:"leased_bytes"`
	Pinned     uint64            `json:"pinned_bytes"`
	Idle       uint64            `json:"idle_bytes"`
	Chunks     uint64            `json:"chunks"`
	Namespaces uint64            `json:"namespaces"`
	Clients    uint64            `json:"workers"`
	Awaited    uint64            `json:"workers_awaited"`
	Reads      uint64            `json:"open_reads"`
	Puts       uint64            `json:"open_puts"`
	Leases     uint64            `json:"leases"`
	Draining   bool              `json:"draining"`
	Policy     string            `json:"eviction_policy,omitempty"`
	Nodes      []jsonNode        `json:"nodes"`
	MissRatios []jsonRatio       `json:"miss_ratios"`
	Disk       *jsonDisk         `json:"disk,omitempty"`
	Counters   map[string]uint64 `json:"counters"`
}

type jsonRatio struct {
	Factor float64 `json:"memory_factor"`
	Miss   float64 `json:"miss_ratio"`
}

// jsonNode is the memory on a NUMA node, or on none.
type jsonNode struct {
	Node     *uint32 `json:"node"`
	Capacity uint64  `json:"capacity_bytes"`
	Prepared uint64  `json:"prepared_bytes"`
	Used     uint64  `json:"used_bytes"`
}

type jsonDisk struct {
	Capacity uint64 `json:"capacity_bytes"`
	Used     uint64 `json:"used_bytes"`
	Chunks   uint64 `json:"chunks"`
}

func ctlStats(ctx context.Context, op *daemon.Operator, c *cli.Context, out io.Writer) error {
	s, err := op.GetStats(ctx, &adminpb.GetStatsRequest{})
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return command.PrintJSON(out, statsJSON(s))
	}
	rows := []string{
		row("memory", fmt.Sprintf("%s used of %s", sizeText(s.GetUsedBytes()), sizeText(s.GetPreparedBytes()))),
	}
	rows = append(rows, nodeRows(s.GetNodes())...)
	rows = append(rows,
		row("leased, pinned", sizeText(s.GetLeasedBytes())+", "+sizeText(s.GetPinnedBytes())),
		row("idle in slots", sizeText(s.GetIdleBytes())),
		row("chunks", s.GetStored().GetChunks()),
		row("namespaces", s.GetNamespaces()),
		row("workers", s.GetClients()),
		row("open reads, puts", fmt.Sprintf("%d, %d", s.GetOpenReads(), s.GetOpenPuts())),
		row("leases", s.GetLeases()),
	)
	if s.GetPreparedBytes() < s.GetCapacityBytes() {
		rows = append(rows, row("memory to come", sizeText(s.GetCapacityBytes()-s.GetPreparedBytes())))
	}
	if s.GetUndeclaredClients() > 0 {
		rows = append(rows, row("workers awaited", s.GetUndeclaredClients()))
	}
	if s.GetEvictionPolicy() != "" {
		rows = append(rows, row("eviction policy", s.GetEvictionPolicy()))
	}
	if s.GetDiskCapacityBytes() > 0 {
		rows = append(rows, row("disk", fmt.Sprintf("%s used of %s, %d chunks", sizeText(s.GetDiskUsedBytes()), sizeText(s.GetDiskCapacityBytes()), s.GetDiskChunks())))
	}
	if s.GetDraining() {
		rows = append(rows, row("draining", "yes: nothing new is stored"))
	}
	for _, r := range s.GetMissRatios() {
		rows = append(rows, row(fmt.Sprintf("with %gx memory", r.GetMemoryFactor()), fmt.Sprintf("%.1f %% of the blocks hit", 100*(1-r.GetMissRatio()))))
	}
	names := []string{}
	for name := range s.GetCounters() {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		rows = append(rows, row(name, s.GetCounters()[name]))
	}
	return table(out, "WHAT\tHOW MUCH", rows)
}

// nodeRows shows memory by NUMA node where there are several.
func nodeRows(nodes []*adminpb.NodeMemory) (rows []string) {
	if len(nodes) < 2 {
		return nil
	}
	for _, n := range nodes {
		name := "  on no node"
		if n.Node != nil {
			name = fmt.Sprintf("  on NUMA node %d", n.GetNode())
		}
		rows = append(rows, row(name, fmt.Sprintf("%s used of %s", sizeText(n.GetUsedBytes()), sizeText(n.GetPreparedBytes()))))
	}
	return rows
}

func statsJSON(s *adminpb.GetStatsReply) *jsonStats {
	j := &jsonStats{
		Capacity: s.GetCapacityBytes(), Prepared: s.GetPreparedBytes(), Used: s.GetUsedBytes(), Leased: s.GetLeasedBytes(), Pinned: s.GetPinnedBytes(),
		Idle: s.GetIdleBytes(), Chunks: s.GetStored().GetChunks(), Namespaces: s.GetNamespaces(), Clients: s.GetClients(),
		Awaited: s.GetUndeclaredClients(), Reads: s.GetOpenReads(), Puts: s.GetOpenPuts(), Leases: s.GetLeases(), Draining: s.GetDraining(),
		Policy: s.GetEvictionPolicy(), Nodes: []jsonNode{}, MissRatios: []jsonRatio{}, Counters: s.GetCounters(),
	}
	for _, n := range s.GetNodes() {
		j.Nodes = append(j.Nodes, jsonNode{n.Node, n.GetCapacityBytes(), n.GetPreparedBytes(), n.GetUsedBytes()})
	}
	for _, r := range s.GetMissRatios() {
		j.MissRatios = append(j.MissRatios, jsonRatio{r.GetMemoryFactor(), r.GetMissRatio()})
	}
	if s.GetDiskCapacityBytes() > 0 {
		j.Disk = &jsonDisk{s.GetDiskCapacityBytes(), s.GetDiskUsedBytes(), s.GetDiskChunks()}
	}
	return j
}

func ctlUsage(ctx context.Context, op *daemon.Operator, c *cli.Context, out io.Writer) error {
	byTag := c.Bool("by-tag")
	names, err := shortNames(ctx, op)
	if err != nil {
		return err
	}
	reply, err := op.GetUsage(ctx, &adminpb.GetUsageRequest{ByTag: byTag})
	if err != nil {
		return err
	}
	list, rows, head := []jsonUsage{}, []string{}, "NAMESPACE"
	if byTag {
		head = "TAG"
	}
	for _, e := range reply.GetEntries() {
		u := jsonUsage{
			Namespace: hex.EncodeToString(e.GetNamespace()), Chunks: e.GetAmount().GetChunks(), Bytes: e.GetAmount().GetBytes(),
			Pinned: e.GetPinnedBytes(), Quota: e.GetQuotaBytes(), Refused: &e.RefusedPuts,
		}
		name := names[string(e.GetNamespace())]
		if byTag {
			u.Tag = &e.Tag
			if name = e.GetTag(); name == "" {
				name = "(none)"
			}
		}
		list = append(list, u)
		rows = append(rows, row(name, u.Chunks, sizeText(u.Bytes), orDash(u.Pinned), orDash(u.Quota), e.GetRefusedPuts()))
	}
	if c.Bool("json") {
		return command.PrintJSON(out, list)
	}
	return table(out, head+"\tCHUNKS\tMEMORY\tPINNED\tQUOTA\tREFUSED PUTS", rows)
}

type jsonPrefix struct {
	Namespace string `json:"namespace"`
	Group     uint32 `json:"group"`
	Root      string `json:"root,omitempty"`
	Leaf      string `json:"leaf"`
	Tokens    uint64 `json:"tokens"`
	Hits      uint64 `json:"hits"`
	Chunks    uint64 `json:"chunks"`
	Bytes     uint64 `json:"bytes"`
}

func ctlTop(ctx context.Context, op *daemon.Operator, c *cli.Context, out io.Writer) error {
	if n := c.Int("limit"); n < 1 || n > control.MaxPrefixes {
		return command.UsageErrorf("--limit %d; want 1 to %d", n, control.MaxPrefixes)
	}
	request := &adminpb.TopPrefixesRequest{Limit: uint32(c.Int("limit"))}
	if c.String("namespace") != "" {
		ns, err := chosen(ctx, op, c)
		if err != nil {
			return err
		}
		request.Namespace = ns.digest
	}
	names, err := shortNames(ctx, op)
	if err != nil {
		return err
	}
	reply, err := op.TopPrefixes(ctx, request)
	if err != nil {
		return err
	}
	list, rows := []jsonPrefix{}, []string{}
	for _, e := range reply.GetPrefixes() {
		list = append(list, jsonPrefix{
			Namespace: hex.EncodeToString(e.GetNamespace()), Group: e.GetGroup(), Root: hex.EncodeToString(e.GetRoot()), Leaf: hex.EncodeToString(e.GetLeaf()),
			Tokens: e.GetTokens(), Hits: e.GetHits(), Chunks: e.GetAmount().GetChunks(), Bytes: e.GetAmount().GetBytes(),
		})
		rows = append(rows, row(names[string(e.GetNamespace())], e.GetGroup(), e.GetHits(), e.GetTokens(), e.GetAmount().GetChunks(),
			sizeText(e.GetAmount().GetBytes()), shortHash(e.GetRoot()), shortHash(e.GetLeaf())))
	}
	if c.Bool("json") {
		return command.PrintJSON(out, list)
	}
	return table(out, "NAMESPACE\tGROUP\tHITS\tTOKENS\tCHUNKS\tMEMORY\tFIRST\tLAST", rows)
}

func ctlConfig(ctx context.Context, op *daemon.Operator, c *cli.Context, out io.Writer) error {
	reply, err := op.GetConfiguration(ctx, &adminpb.GetConfigurationRequest{})
	if err != nil {
		return err
	}
	type setting struct {
		Section string `json:"section,omitempty"`
		Key     string `json:"key"`
		Value   string `json:"value"`
		Origin  string `json:"origin"`
		Where   string `json:"where,omitempty"`
	}
	list, rows := []setting{}, []string{}
	for _, s := range reply.GetSettings() {
		list = append(list, setting{s.GetSection(), s.GetKey(), s.GetValue(), s.GetOrigin(), s.GetWhere()})
		from := s.GetOrigin()
		if s.GetOrigin() != string(config.FromDefault) {
			from += " " + s.GetWhere()
		}
		rows = append(rows, row(s.GetKey(), s.GetValue(), from))
	}
	if c.Bool("json") {
		return command.PrintJSON(out, list)
	}
	return table(out, "SETTING\tVALUE\tFROM", rows)
}
