package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/mooncake-sidecar/sidecar/cmd/internal/command"
	"github.com/mooncake-sidecar/sidecar/internal/daemon"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// jsonNamespace and jsonExplanation are what --json prints; names stay as they
// are once released.
type jsonNamespace struct {
	Namespace  uint32 `json:"namespace"`
	Digest     string `json:"digest"`
	Model      string `json:"model"`
	HashTokens int    `json:"hash_block_tokens"`
	Layout     string `json:"layout"`
	Groups     int    `json:"group_count"`
}

type jsonExplanation struct {
	jsonNamespace
	Tokens   int         `json:"tokens"`
	Hit      int         `json:"hit_tokens"`
	Reusable int         `json:"reusable_tokens"`
	Groups   []jsonGroup `json:"groups"`
}

type jsonGroup struct {
	Group        int    `json:"group"`
	Kind         string `json:"kind"`
	BlockTokens  int    `json:"block_tokens"`
	WindowTokens int    `json:"window_tokens,omitempty"`
	Alone        int    `json:"alone_tokens"`
	Limits       bool   `json:"limits"`
	Stored       int    `json:"stored_chunks"`
	Asked        int    `json:"asked_chunks"`
	Partial      int    `json:"partial_chunks"`
	Failed       int    `json:"failed_chunks"`
	FirstMissing int    `json:"first_missing"` // -1 for none
	Reason       string `json:"reason"`
}

func describe(ns *daemon.Namespace) jsonNamespace {
	return jsonNamespace{
		Namespace: ns.ID, Digest: ns.Digest(), Model: ns.Spec.Model, HashTokens: ns.Spec.HashBlockTokens,
		Layout: ns.Spec.Layout, Groups: len(ns.Spec.Groups),
	}
}

func printNamespaces(out io.Writer, all []daemon.Namespace, asJSON bool) error {
	if asJSON {
		list := []jsonNamespace{}
		for i := range all {
			list = append(list, describe(&all[i]))
		}
		return command.PrintJSON(out, list)
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAMESPACE\tDIGEST\tMODEL\tTOKENS A HASH\tGROUPS\tLAYOUT") // errors: Flush has them
	for i := range all {
		n := describe(&all[i])
		fmt.Fprintf(table, "%d\t%.12s\t%s\t%d\t%d\t%s\n", n.Namespace, n.Digest, n.Model, n.HashTokens, n.Groups, n.Layout)
	}
	return table.Flush()
}

func printExplanation(out io.Writer, ns *daemon.Namespace, e *daemon.Explanation, asJSON bool) error {
	x := jsonExplanation{jsonNamespace: describe(ns), Tokens: e.NumTokens, Hit: e.HitTokens, Reusable: e.Length}
	for _, g := range e.Groups {
		group := jsonGroup{
			Group: g.Group, Kind: string(g.Kind), BlockTokens: g.BlockTokens, WindowTokens: g.WindowTokens, Alone: g.Alone, Limits: g.Limits,
			Stored: g.Stored, Asked: g.Asked, FirstMissing: g.FirstMissing, Reason: g.Reason,
		}
		for chunk, state := range e.States {
			switch {
			case chunk.Group != g.Group:
			case state == embedded.ChunkPartial:
				group.Partial++
			case state == embedded.ChunkFailed:
				group.Failed++
			}
		}
		if g.FirstMissing >= 0 {
			at := (g.FirstMissing+1)*g.BlockTokens/ns.Spec.HashBlockTokens - 1
			group.Reason += detail(e.States[daemon.Chunk{Group: g.Group, HashIndex: at}])
		}
		x.Groups = append(x.Groups, group)
	}
	if asJSON {
		return command.PrintJSON(out, x)
	}
	fmt.Fprintf(out, "namespace %d (%.12s) of %s\nhit %d of %d tokens; at most %d can be reused\n\n",
		x.Namespace, x.Digest, x.Model, x.Hit, x.Tokens, x.Reusable) // errors: Flush has them
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\tGROUP\tKIND\tBLOCK\tWINDOW\tALONE\tSTORED\tWHY")
	for _, g := range x.Groups {
		mark, window := " ", "-"
		if g.Limits {
			mark = "*"
		}
		if g.WindowTokens > 0 {
			window = fmt.Sprint(g.WindowTokens)
		}
		fmt.Fprintf(table, "%s\t%d\t%s\t%d\t%s\t%d\t%d of %d\t%s\n", mark, g.Group, g.Kind, g.BlockTokens, window, g.Alone, g.Stored, g.Asked,
			strings.ReplaceAll(g.Reason, "\n", " "))
	}
	return table.Flush()
}

// detail is what the store knows of a missing chunk beyond its absence.
func detail(state embedded.ChunkState) string {
	switch state {
	case embedded.ChunkPartial:
		return " (only some of its shards are stored)"
	case embedded.ChunkFailed:
		return " (it is stored, but a load of it has failed: one lookup passes it over)"
	}
	return ""
}
