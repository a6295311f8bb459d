package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/cmd/internal/command"
	"github.com/mooncake-sidecar/sidecar/internal/admin/adminpb"
	"github.com/mooncake-sidecar/sidecar/internal/admin/control"
	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/daemon"
)

// addBounds adds what bounds what is stored from now on.
func addBounds(add addCtl) {
	add("quota", "list the quotas, or set one", `A quota bounds the memory of a namespace, or of a salt tag in all namespaces. What
is over it goes with the owner's next puts. Without --bytes the quotas are listed.

Examples:

   mooncake-lookupd ctl quota
   mooncake-lookupd ctl quota --tag tenant-7 --bytes 8GiB
   mooncake-lookupd ctl quota --namespace 0 --bytes 0   # none any more`, ctlQuota,
		namespaceFlag(), &cli.StringFlag{Name: "tag", Usage: "the salt `tag` that is meant"},
		&cli.StringFlag{Name: "bytes", Usage: "`size` that it may have in memory, 0 for no quota"})
	add("ttl", "set how long a namespace's chunks live", `It is for chunks that are stored from now on.

Examples:

   mooncake-lookupd ctl ttl --namespace llama-3.1-8b --time 24h
   mooncake-lookupd ctl ttl --namespace 0 --time 0   # for ever`, ctlTTL,
		namespaceFlag(), &cli.DurationFlag{Name: "time", Usage: "the `time` they live, 0 for ever"})
	add("drain", "store nothing new, and serve what is stored", `For a node that is to be emptied or stopped. Engines run on; they compute what is
not stored. A restart of the daemon ends it.

Examples:

   mooncake-lookupd ctl drain
   mooncake-lookupd ctl drain --resume`, ctlDrain, &cli.BoolFlag{Name: "resume", Usage: "store again"})
}

func ctlQuota(ctx context.Context, op *daemon.Operator, c *cli.Context, out io.Writer) error {
	if !c.IsSet("bytes") {
		if c.IsSet("tag") || c.IsSet("namespace") {
			return command.UsageErrorf("--bytes is missing; without any of the three the quotas are listed")
		}
		return listQuotas(ctx, op, c, out)
	}
	if c.IsSet("tag") && c.IsSet("namespace") {
		return command.UsageErrorf("a quota is a namespace's or a salt tag's, not both's")
	}
	size, err := config.ParseSize(c.String("bytes"))
	if err != nil {
		return command.UsageErrorf("--bytes: %w", err)
	}
	request := &adminpb.SetQuotaRequest{Tag: c.String("tag"), Bytes: uint64(size)}
	whose := fmt.Sprintf("salt tag %q", request.GetTag())
	if !c.IsSet("tag") {
		ns, err := chosen(ctx, op, c)
		if err != nil {
			return err
		}
		request.Namespace, whose = ns.digest, ns.name
	}
	if _, err := op.SetQuota(ctx, request); err != nil {
		return err
	}
	if c.Bool("json") {
		return command.PrintJSON(out, map[string]any{"namespace": hex.EncodeToString(request.GetNamespace()), "tag": request.GetTag(), "quota_bytes": request.GetBytes()})
	}
	quota := "no quota"
	if size > 0 {
		quota = "a quota of " + sizeText(uint64(size))
	}
	_, err = fmt.Fprintf(out, "%s has %s\n", whose, quota)
	return err
}

func listQuotas(ctx context.Context, op *daemon.Operator, c *cli.Context, out io.Writer) error {
	names, err := shortNames(ctx, op)
	if err != nil {
		return err
	}
	reply, err := op.ListQuotas(ctx, &adminpb.ListQuotasRequest{})
	if err != nil {
		return err
	}
	type quota struct {
		Namespace string `json:"namespace,omitempty"`
		Tag       string `json:"tag,omitempty"`
		Quota     uint64 `json:"quota_bytes"`
		Used      uint64 `json:"used_bytes"`
		Refused   uint64 `json:"refused_puts"`
	}
	list, rows := []quota{}, []string{}
	for _, q := range reply.GetQuotas() {
		list = append(list, quota{hex.EncodeToString(q.GetNamespace()), q.GetTag(), q.GetQuotaBytes(), q.GetUsedBytes(), q.GetRefusedPuts()})
		owner := "namespace " + names[string(q.GetNamespace())]
		if q.GetTag() != "" {
			owner = "tag " + q.GetTag()
		}
		rows = append(rows, row(owner, sizeText(q.GetQuotaBytes()), sizeText(q.GetUsedBytes()), q.GetRefusedPuts()))
	}
	if c.Bool("json") {
		return command.PrintJSON(out, list)
	}
	return table(out, "OWNER\tQUOTA\tUSED\tREFUSED PUTS", rows)
}

func ctlTTL(ctx context.Context, op *daemon.Operator, c *cli.Context, out io.Writer) error {
	ttl := c.Duration("time")
	if !c.IsSet("time") {
		return command.UsageErrorf("how long? give --time, like 24h, or 0 for ever")
	}
	if ttl < 0 || ttl > control.MaxTTLSeconds*time.Second || ttl%time.Second != 0 {
		return command.UsageErrorf("--time %s; want whole seconds up to %s, or 0", ttl, control.MaxTTLSeconds*time.Second)
	}
	ns, err := chosen(ctx, op, c)
	if err != nil {
		return err
	}
	if _, err := op.SetTTL(ctx, &adminpb.SetTTLRequest{Namespace: ns.digest, TtlSeconds: uint64(ttl / time.Second)}); err != nil {
		return err
	}
	if c.Bool("json") {
		return command.PrintJSON(out, map[string]any{"namespace": hex.EncodeToString(ns.digest), "ttl_seconds": ttl / time.Second})
	}
	lives := "for ever"
	if ttl > 0 {
		lives = ttl.String()
	}
	_, err = fmt.Fprintf(out, "what %s stores from now on lives %s\n", ns.name, lives)
	return err
}

func ctlDrain(ctx context.Context, op *daemon.Operator, c *cli.Context, out io.Writer) error {
	draining := !c.Bool("resume")
	reply, err := op.SetDraining(ctx, &adminpb.SetDrainingRequest{Draining: draining})
	if err != nil {
		return err
	}
	if c.Bool("json") {
		return command.PrintJSON(out, map[string]any{"draining": draining, "open_puts": reply.GetOpenPuts()})
	}
	text := "new chunks are stored"
	if draining {
		text = fmt.Sprintf("nothing new is stored; %d puts are under way", reply.GetOpenPuts())
	}
	_, err = fmt.Fprintln(out, text)
	return err
}
