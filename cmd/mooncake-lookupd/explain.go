package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/cmd/internal/command"
	"github.com/mooncake-sidecar/sidecar/internal/daemon"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

const (
	explainTimeout = 30 * time.Second
	// maxHashFile bounds a file of hashes: a million of them, as text.
	maxHashFile = 128 << 20
	// maxExplainTokens bounds a request's length.
	maxExplainTokens = 1 << 31
)

const explainHelp = `Asks the running daemon which chunks of a request are stored, and says for each
KV-cache group what ends the hit; * marks the groups that no other group undercuts.
The daemon's state does not change. Without --hashes it lists the namespaces.

FILE has the block hashes of a request from the first, in hexadecimal: one a
line, or JSON as {"tokens": 1234, "hashes": ["3f...", ...]}. A namespace is given
by its number, the beginning of its digest, or its model.

Examples:

   mooncake-lookupd explain
   mooncake-lookupd explain --namespace 0 --hashes request.txt --tokens 1234
   mooncake-lookupd explain --namespace llama-3.1-8b --hashes - --json < request.json`

// explainCommand tells an operator why a hit is as short as it is.
func explainCommand(runtimeDir func() string) command.Subcommand {
	return command.Subcommand{
		Name: "explain", Usage: "why a request's hit is as short as it is, group by group", Description: explainHelp,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "namespace", Usage: "the request's `namespace`; may be left out where there is one only"},
			&cli.StringFlag{Name: "hashes", Usage: "read the request's block hashes from `FILE`, - for standard input"},
			&cli.IntFlag{Name: "tokens", Usage: "the request's length in `tokens`; default: the file's, or one more than the hashes cover"},
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
		},
		Run: func(c *cli.Context, out io.Writer) error {
			ctx, cancel := context.WithTimeout(c.Context, explainTimeout)
			defer cancel()
			inspector, err := daemon.NewInspector(runtimeDir())
			if err != nil {
				return err
			}
			err = explain(ctx, inspector, c, out)
			return errors.Join(err, inspector.Close())
		},
	}
}

func explain(ctx context.Context, inspector *daemon.Inspector, c *cli.Context, out io.Writer) error {
	all, err := inspector.Namespaces(ctx)
	if err != nil {
		return err
	}
	if c.String("hashes") == "" {
		if c.IsSet("tokens") {
			return command.UsageErrorf("--tokens without --hashes")
		}
		return printNamespaces(out, all, c.Bool("json"))
	}
	ns, err := chooseNamespace(all, c.String("namespace"))
	if err != nil {
		return err
	}
	tokens, hashes, err := readHashes(c.String("hashes"), c.App.Reader)
	if err != nil {
		return err
	}
	switch {
	case c.IsSet("tokens"):
		tokens = c.Int("tokens")
	case tokens == 0:
		tokens = hashes.Len()*ns.Spec.HashBlockTokens + 1
	}
	if tokens < 0 || tokens > maxExplainTokens {
		return command.UsageErrorf("%d tokens, want 0 to %d", tokens, maxExplainTokens)
	}
	e, err := inspector.Explain(ctx, ns, hashes, tokens)
	if err != nil {
		return err
	}
	return printExplanation(out, ns, e, c.Bool("json"))
}

// chooseNamespace finds the one that is meant.
func chooseNamespace(all []daemon.Namespace, name string) (*daemon.Namespace, error) {
	var found []*daemon.Namespace
	number, notNumber := strconv.ParseUint(name, 10, 32)
	for i := range all {
		ns := &all[i]
		if notNumber == nil && uint64(ns.ID) == number {
			return ns, nil
		}
		if name == "" || ns.Spec.Model == name || kv.ModelBaseName(ns.Spec.Model) == name ||
			len(name) >= 4 && strings.HasPrefix(ns.Digest(), strings.ToLower(name)) {
			found = append(found, ns)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(all) == 0:
		return nil, errors.New("the daemon has no namespace: no engine has registered")
	case len(found) == 0:
		return nil, command.UsageErrorf("no namespace %q among %s", name, listed(all))
	}
	return nil, command.UsageErrorf("which of %d namespaces? give --namespace with one of %s", len(found), listed(all))
}

func listed(all []daemon.Namespace) string {
	var names []string
	for i := range all {
		names = append(names, fmt.Sprintf("%d (%s, %.12s)", all[i].ID, all[i].Spec.Model, all[i].Digest()))
	}
	return strings.Join(names, ", ")
}

// readHashes reads a request's hashes and its length, 0 where the file does not
// say it.
func readHashes(name string, in io.Reader) (tokens int, hashes kv.HashBlob, err error) {
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return 0, hashes, command.UsageErrorf("%w", err)
		}
		defer func() { _ = file.Close() }() // it was only read
		in = file
	}
	data, err := io.ReadAll(io.LimitReader(in, maxHashFile+1))
	if err != nil {
		return 0, hashes, fmt.Errorf("reading the hashes: %w", err)
	}
	if len(data) > maxHashFile {
		return 0, hashes, command.UsageErrorf("%s has more than %d bytes", name, maxHashFile)
	}
	tokens, hashes, err = parseHashes(data)
	if err != nil {
		return 0, hashes, command.UsageErrorf("%s: %w", name, err)
	}
	return tokens, hashes, nil
}

// parseHashes reads either form of a file of hashes.
func parseHashes(data []byte) (tokens int, hashes kv.HashBlob, err error) {
	var request struct {
		Tokens int      `json:"tokens"`
		Hashes []string `json:"hashes"`
	}
	if trimmed := bytes.TrimSpace(data); bytes.HasPrefix(trimmed, []byte("{")) {
		if err := json.Unmarshal(trimmed, &request); err != nil {
			return 0, hashes, err
		}
	} else {
		lines := bufio.NewScanner(bytes.NewReader(data))
		for lines.Scan() {
			if line := strings.TrimSpace(lines.Text()); line != "" {
				request.Hashes = append(request.Hashes, line)
			}
		}
		if err := lines.Err(); err != nil {
			return 0, hashes, err
		}
	}
	if request.Tokens < 0 || request.Tokens > maxExplainTokens {
		return 0, hashes, fmt.Errorf("tokens is %d, want 0 to %d", request.Tokens, maxExplainTokens)
	}
	var blob []byte
	length := 0
	for i, text := range request.Hashes {
		hash, err := hex.DecodeString(text)
		if err != nil {
			return 0, hashes, fmt.Errorf("hash %d, %.80q: %w", i, text, err)
		}
		if i > 0 && len(hash) != length {
			return 0, hashes, fmt.Errorf("hash %d has %d bytes, those before have %d", i, len(hash), length)
		}
		length = len(hash)
		if length == 0 {
			return 0, hashes, fmt.Errorf("hash %d is empty", i)
		}
		blob = append(blob, hash...)
	}
	hashes, err = kv.NewHashBlob(blob, length)
	return request.Tokens, hashes, err
}
