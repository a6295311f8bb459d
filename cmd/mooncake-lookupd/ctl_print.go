package main

import (
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/cmd/internal/command"
	"github.com/mooncake-sidecar/sidecar/internal/admin/adminpb"
)

// sizeText writes bytes for people: 1.5 GiB.
func sizeText(n uint64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, at := float64(n)/unit, 0
	for value >= unit && at < 4 {
		value, at = value/unit, at+1
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTP"[at])
}

// orDash writes a size, and - for none.
func orDash(n uint64) string {
	if n == 0 {
		return "-"
	}
	return sizeText(n)
}

// shortHash writes enough of a hash to tell it from others in a table.
func shortHash(hash []byte) string {
	if len(hash) == 0 {
		return "-"
	}
	return hex.EncodeToString(hash[:min(8, len(hash))])
}

// cell keeps what came from outside within its cell.
func cell(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, text)
}

// table prints rows under a head; cells are parted by tabs.
func table(out io.Writer, head string, rows []string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, head) // errors: Flush has them
	for _, row := range rows {
		fmt.Fprintln(w, row)
	}
	return w.Flush()
}

// row joins cells.
func row(cells ...any) string {
	texts := make([]string, len(cells))
	for i, c := range cells {
		texts[i] = cell(fmt.Sprint(c))
	}
	return strings.Join(texts, "\t")
}

// jsonDone is what --json prints of a command that did something to chunks; names
// stay as they are once released.
type jsonDone struct {
	Chunks  uint64  `json:"chunks"`
	Bytes   uint64  `json:"bytes"`
	Missing *uint64 `json:"missing_hashes,omitempty"`
	Busy    *uint64 `json:"busy_chunks,omitempty"`
	Short   *bool   `json:"short,omitempty"`
	Disk    *uint64 `json:"disk_chunks,omitempty"`
}

// printDone says what a command did, and is errNothing when that is nothing.
func printDone(c *cli.Context, out io.Writer, verb string, amount *adminpb.Amount, done jsonDone) error {
	done.Chunks, done.Bytes = amount.GetChunks(), amount.GetBytes()
	if c.Bool("json") {
		if err := command.PrintJSON(out, done); err != nil {
			return err
		}
	} else {
		text := fmt.Sprintf("%s %d chunks, %s", verb, done.Chunks, sizeText(done.Bytes))
		if done.Disk != nil && *done.Disk > 0 {
			text += fmt.Sprintf("; the disk had %d", *done.Disk)
		}
		if done.Missing != nil && *done.Missing > 0 {
			text += fmt.Sprintf("; of %d hashes nothing is stored", *done.Missing)
		}
		if done.Busy != nil && *done.Busy > 0 {
			text += fmt.Sprintf("; %d chunks are in use or pinned", *done.Busy)
		}
		if _, err := fmt.Fprintln(out, text); err != nil {
			return err
		}
	}
	if done.Chunks == 0 && (done.Disk == nil || *done.Disk == 0) {
		return errNothing
	}
	return nil
}
