package main

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/cmd/internal/command"
	"github.com/mooncake-sidecar/sidecar/internal/admin/adminpb"
	"github.com/mooncake-sidecar/sidecar/internal/admin/control"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// keyFlags are those of commands about chunks.
func keyFlags() []cli.Flag {
	return []cli.Flag{
		namespaceFlag(),
		&cli.StringFlag{Name: "hashes", Usage: "read block hashes from `FILE`, - for standard input"},
		&cli.IntSliceFlag{Name: "group", Usage: "the KV-cache `group` that is meant; may be given again, default all"},
	}
}

// readKeys reads what keyFlags say.
func readKeys(c *cli.Context, ns *target) (*adminpb.Keys, error) {
	keys := &adminpb.Keys{Namespace: ns.digest}
	for _, g := range c.IntSlice("group") {
		if g < 0 || g >= len(ns.spec.Groups) {
			return nil, command.UsageErrorf("--group %d; %s has 0 to %d", g, ns.name, len(ns.spec.Groups)-1)
		}
		keys.Groups = append(keys.Groups, uint32(g))
	}
	var err error
	keys.Hashes, err = readHashList(c, &ns.spec)
	return keys, err
}

// readHashList reads the hashes of --hashes for a namespace.
func readHashList(c *cli.Context, spec *kv.NamespaceSpec) ([]byte, error) {
	name, in := c.String("hashes"), c.App.Reader
	if name == "" {
		return nil, command.UsageErrorf("which chunks? give their block hashes by --hashes FILE, or - for standard input")
	}
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, command.UsageErrorf("%w", err)
		}
		defer func() { _ = file.Close() }() // it was only read
		in = file
	} else {
		name = "standard input"
	}
	hashes, err := parseHashList(in, spec.HashBytes)
	if err != nil {
		return nil, command.UsageErrorf("%s%w", name, err)
	}
	return hashes, nil
}

// parseHashList reads hashes of that many bytes, one a line in hexadecimal, or
// the JSON that explain reads. An error begins with a colon, and the number of
// the line.
func parseHashList(in io.Reader, hashBytes int) ([]byte, error) {
	lines := bufio.NewReader(in)
	if start, err := firstByte(lines); err == nil && start == '{' {
		return parseHashJSON(lines, hashBytes)
	}
	var hashes []byte
	// A line has a hash and maybe a comment; a longer one is no list of hashes.
	scanner := bufio.NewScanner(lines)
	scanner.Buffer(make([]byte, 0, 4096), 64<<10)
	at := 0
	for scanner.Scan() {
		at++
		text, _, _ := strings.Cut(scanner.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		hash, err := hex.DecodeString(strings.TrimPrefix(text, "0x"))
		if err != nil {
			return nil, fmt.Errorf(":%d: %.80q is not hexadecimal: %w", at, text, err)
		}
		if len(hash) != hashBytes {
			return nil, fmt.Errorf(":%d: a hash of %d bytes; the namespace has hashes of %d, which are %d digits", at, len(hash), hashBytes, 2*hashBytes)
		}
		if len(hashes) == control.MaxHashes*hashBytes {
			return nil, fmt.Errorf(":%d: more than %d hashes; split the list", at, control.MaxHashes)
		}
		hashes = append(hashes, hash...)
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf(":%d: %w", at+1, err)
	}
	if len(hashes) == 0 {
		return nil, fmt.Errorf(": no hashes in it; want one in hexadecimal a line")
	}
	return hashes, nil
}

// firstByte returns the first byte that is no space, without taking it.
func firstByte(in *bufio.Reader) (byte, error) {
	for {
		b, err := in.ReadByte()
		if err != nil {
			return 0, err
		}
		if !bytes.ContainsRune([]byte(" \t\r"), rune(b)) {
			return b, in.UnreadByte()
		}
	}
}

func parseHashJSON(in io.Reader, hashBytes int) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(in, maxHashFile+1))
	if err != nil {
		return nil, fmt.Errorf(": %w", err)
	}
	if len(data) > maxHashFile {
		return nil, fmt.Errorf(": more than %d bytes", maxHashFile)
	}
	_, blob, err := parseHashes(data)
	if err != nil {
		return nil, fmt.Errorf(": %w", err)
	}
	switch {
	case blob.Len() == 0:
		return nil, fmt.Errorf(": no hashes in it")
	case blob.HashLen() != hashBytes:
		return nil, fmt.Errorf(": hashes of %d bytes; the namespace has hashes of %d", blob.HashLen(), hashBytes)
	case blob.Len() > control.MaxHashes:
		return nil, fmt.Errorf(": %d hashes; at most %d, split the list", blob.Len(), control.MaxHashes)
	}
	hashes := make([]byte, 0, blob.Len()*hashBytes)
	for i := range blob.Len() {
		h := blob.At(i)
		hashes = append(hashes, h[:hashBytes]...)
	}
	return hashes, nil
}
