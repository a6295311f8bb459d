package main

import (
	"context"
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

// addChanges adds what does something to chunks.
func addChanges(add addCtl) {
	add("evict", "make room by the eviction policy, least valuable chunks first", `Examples:

   mooncake-lookupd ctl evict --bytes 4GiB --yes
   mooncake-lookupd ctl evict --chunks 1000 --yes`, ctlEvict,
		&cli.StringFlag{Name: "bytes", Usage: "`size` of the memory to free, like 4GiB"}, &cli.Uint64Flag{Name: "chunks", Usage: "`number` of chunks to evict"}, yesFlag())
	add("pin", "keep chunks from eviction", `A soft pin goes when nothing else can; a hard one never, and all of them may take a
bounded share of the memory. Chunks that are not stored are passed over.

Examples:

   mooncake-lookupd ctl pin --namespace 0 --hashes system-prompt.txt
   mooncake-lookupd ctl pin --hashes - --hard --ttl 24h < system-prompt.txt`, ctlPin,
		append(keyFlags(), &cli.BoolFlag{Name: "hard", Usage: "never evict them"}, &cli.DurationFlag{Name: "ttl", Usage: "unpin them after that `time`; default: never"})...)
	add("unpin", "leave chunks to the eviction policy again", `Examples:

   mooncake-lookupd ctl unpin --hashes system-prompt.txt`, ctlUnpin, keyFlags()...)
	add("prefetch", "bring chunks from the disk tier, or the cluster, into memory", `The command ends when the last chunk is being read. A long list takes as long as the disk does: raise --timeout,
or give the list again, for what is in memory is passed over.

Examples:

   mooncake-lookupd ctl prefetch --hashes system-prompt.txt`, ctlPrefetch, keyFlags()...)
	add("remove", "drop a namespace's chunks, a salt tag's, or those of a list of hashes", `What is being read stays readable for its readers. Pins do not hold it.
In a cluster it goes too where mooncake_reset is cluster: a whole namespace, or a list of hashes; of a salt tag
or a chain, what this node has in memory.

Examples:

   mooncake-lookupd ctl remove --namespace old-model --everything --yes
   mooncake-lookupd ctl remove --tag tenant-7 --yes
   mooncake-lookupd ctl remove --hashes leaked.txt --chain --yes`, ctlRemove,
		namespaceFlag(), &cli.BoolFlag{Name: "everything", Usage: "all of the namespace"},
		&cli.StringFlag{Name: "tag", Usage: "what was stored under this salt `tag`, in --namespace or everywhere"},
		&cli.StringFlag{Name: "hashes", Usage: "the chunks of the block hashes in `FILE`, - for standard input"},
		&cli.BoolFlag{Name: "chain", Usage: "with --hashes: and all that stands behind them in their chains"}, yesFlag())
}

// confirm refuses unless --yes was given.
func confirm(c *cli.Context, format string, args ...any) error {
	if c.Bool("yes") {
		return nil
	}
	return command.UsageErrorf("this would "+format+"; add --yes to do it", args...)
}

func ctlEvict(ctx context.Context, op *daemon.Operator, c *cli.Context, out io.Writer) error {
	request := &adminpb.EvictRequest{Chunks: c.Uint64("chunks")}
	if text := c.String("bytes"); text != "" {
		size, err := config.ParseSize(text)
		if err != nil {
			return command.UsageErrorf("--bytes: %w", err)
		}
		request.Bytes = uint64(size)
	}
	if (request.GetBytes() > 0) == (request.GetChunks() > 0) {
		return command.UsageErrorf("how much? give --bytes or --chunks, above 0")
	}
	what := fmt.Sprintf("%d chunks", request.GetChunks())
	if request.GetBytes() > 0 {
		what = sizeText(request.GetBytes())
	}
	if err := confirm(c, "evict %s", what); err != nil {
		return err
	}
	reply, err := op.Evict(ctx, request)
	if err != nil {
		return err
	}
	return printDone(c, out, "evicted", reply.GetEvicted(), jsonDone{Busy: &reply.BusyChunks, Short: &reply.Short})
}

func ctlPin(ctx context.Context, op *daemon.Operator, c *cli.Context, out io.Writer) error {
	ttl := c.Duration("ttl")
	if ttl < 0 || ttl > control.MaxTTLSeconds*time.Second || c.IsSet("ttl") && ttl < time.Second {
		return command.UsageErrorf("--ttl %s; want 1s to %s", ttl, control.MaxTTLSeconds*time.Second)
	}
	ns, err := chosen(ctx, op, c)
	if err != nil {
		return err
	}
	request := &adminpb.PinRequest{Kind: adminpb.PinRequest_KIND_SOFT, TtlSeconds: uint64(ttl / time.Second)}
	if c.Bool("hard") {
		request.Kind = adminpb.PinRequest_KIND_HARD
	}
	if request.Keys, err = readKeys(c, ns); err != nil {
		return err
	}
	reply, err := op.Pin(ctx, request)
	if err != nil {
		return err
	}
	return printDone(c, out, "pinned", reply.GetPinned().GetAmount(), jsonDone{Missing: &reply.GetPinned().MissingHashes})
}

func ctlUnpin(ctx context.Context, op *daemon.Operator, c *cli.Context, out io.Writer) error {
	ns, err := chosen(ctx, op, c)
	if err != nil {
		return err
	}
	keys, err := readKeys(c, ns)
	if err != nil {
		return err
	}
	reply, err := op.Unpin(ctx, &adminpb.UnpinRequest{Keys: keys})
	if err != nil {
		return err
	}
	return printDone(c, out, "unpinned", reply.GetUnpinned().GetAmount(), jsonDone{Missing: &reply.GetUnpinned().MissingHashes})
}

func ctlPrefetch(ctx context.Context, op *daemon.Operator, c *cli.Context, out io.Writer) error {
	ns, err := chosen(ctx, op, c)
	if err != nil {
		return err
	}
	keys, err := readKeys(c, ns)
	if err != nil {
		return err
	}
	reply, err := op.Prefetch(ctx, &adminpb.PrefetchRequest{Keys: keys})
	if err != nil {
		return err
	}
	if c.Bool("json") {
		err = command.PrintJSON(out, map[string]uint64{"begun_chunks": reply.GetBegunChunks(), "resident_chunks": reply.GetResidentChunks()})
	} else {
		_, err = fmt.Fprintf(out, "%d chunks are being fetched, %d are in memory\n", reply.GetBegunChunks(), reply.GetResidentChunks())
	}
	if err == nil && reply.GetBegunChunks()+reply.GetResidentChunks() == 0 {
		return errNothing
	}
	return err
}

func ctlRemove(ctx context.Context, op *daemon.Operator, c *cli.Context, out io.Writer) error {
	scopes := 0
	for _, flag := range []string{"everything", "tag", "hashes"} {
		if c.IsSet(flag) {
			scopes++
		}
	}
	switch {
	case scopes != 1:
		return command.UsageErrorf("what? give one of --everything, --tag TAG and --hashes FILE")
	case c.Bool("chain") && !c.IsSet("hashes"):
		return command.UsageErrorf("--chain without --hashes")
	case c.IsSet("everything") && !c.Bool("everything"):
		return command.UsageErrorf("--everything=false removes nothing; leave it out")
	case c.IsSet("namespace") && c.String("namespace") == "":
		return command.UsageErrorf("--namespace is empty; leave it out for all of them")
	case c.IsSet("everything") && c.String("namespace") == "":
		return command.UsageErrorf("--everything wants --namespace, even where there is one only")
	}
	request := &adminpb.RemoveRequest{}
	what := ""
	if !c.IsSet("tag") || c.String("namespace") != "" {
		ns, err := chosen(ctx, op, c)
		if err != nil {
			return err
		}
		request.Namespace = ns.digest
		what = " of " + ns.name
		if c.IsSet("hashes") {
			hashes, err := readHashList(c, &ns.spec)
			if err != nil {
				return err
			}
			n := len(hashes) / ns.spec.HashBytes
			if c.Bool("chain") && n > control.MaxChainHashes {
				return command.UsageErrorf("--chain takes up to %d hashes, not %d; give the first of each chain", control.MaxChainHashes, n)
			}
			request.Scope = &adminpb.RemoveRequest_Hashes_{Hashes: &adminpb.RemoveRequest_Hashes{Hashes: hashes, Chain: c.Bool("chain")}}
			what = fmt.Sprintf("the chunks of %d hashes%s", n, what)
			if c.Bool("chain") {
				what += " and all behind them"
			}
		} else if c.IsSet("everything") {
			request.Scope = &adminpb.RemoveRequest_Everything{Everything: true}
			what = fmt.Sprintf("all %d chunks (%s)%s", ns.entry.GetAmount().GetChunks(), sizeText(ns.entry.GetAmount().GetBytes()), what)
		}
	}
	if c.IsSet("tag") {
		request.Scope = &adminpb.RemoveRequest_Tag{Tag: c.String("tag")}
		if what == "" {
			what = " of all namespaces"
		}
		what = fmt.Sprintf("what has the salt tag %q%s", c.String("tag"), what)
	}
	if err := confirm(c, "remove %s", what); err != nil {
		return err
	}
	reply, err := op.Remove(ctx, request)
	if err != nil {
		return err
	}
	done := jsonDone{Disk: &reply.DiskChunks}
	if c.IsSet("hashes") {
		done.Missing = &reply.MissingHashes
	}
	return printDone(c, out, "removed", reply.GetRemoved(), done)
}
