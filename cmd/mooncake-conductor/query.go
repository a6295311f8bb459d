package main

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/cmd/internal/command"
	"github.com/mooncake-sidecar/sidecar/conductor/api"
	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// maxTokenText bounds a file of token ids.
const maxTokenText = 256 << 20

func queryCommand(cfg func() *config.ConductorConfig) command.Subcommand {
	return command.Subcommand{
		Name: "query", Usage: "ask who holds how much of a prompt",
		Description: "Examples:\nmooncake-conductor query --model m --tokens 1,2,3\nmooncake-conductor query --model m --tokens-file prompt.json --instance a --json\n" +
			"curl -s http://10.0.0.1:8000/tokenize -d '{\"model\":\"m\",\"prompt\":\"Hello\"}' | jq .tokens | mooncake-conductor query --model m --tokens-file -\n\n" +
			"All numbers are tokens. USABLE is what a rank can use, going through the tiers; the others are what each tier holds from the prompt's beginning.\n" +
			"Exit code 3 when no conductor answers.",
		Settings: ownSettings(),
		Flags: askFlags(
			&cli.StringFlag{Name: "model", Usage: "`name` that the engine is registered with"},
			&cli.StringFlag{Name: "tokens", Usage: "token `ids` of the prompt, split at commas"},
			&cli.StringFlag{Name: "tokens-file", Usage: "`file` with them, a JSON list or numbers between commas or blanks; - is the standard input"},
			&cli.IntFlag{Name: "block-size", Usage: "`tokens` in a block; without, each engine's"},
			&cli.StringFlag{Name: "lora", Usage: "`name` of the adapter"},
			&cli.StringFlag{Name: "tenant", Usage: "`name` of the tenant"},
			&cli.StringFlag{Name: "instance", Usage: "`name` of the only instance that is wanted"},
			&cli.StringFlag{Name: "cache-salt", Usage: "`salt` of the request, or that engines are registered with"},
			&cli.StringFlag{Name: "additional-salt", Usage: "`salt` that engines are registered with; --cache-salt is the request's alone then"},
		),
		Run: func(c *cli.Context, out io.Writer) error {
			q, err := questionOf(c)
			if err != nil {
				return err
			}
			client, err := clientOf(c, cfg())
			if err != nil {
				return err
			}
			answer, err := client.Query(c.Context, q)
			if err != nil {
				return coded(err)
			}
			if c.Bool("json") {
				return command.PrintJSON(out, answer)
			}
			return printAnswer(out, answer)
		},
	}
}

// questionOf reads the flags.
func questionOf(c *cli.Context) (*api.Question, error) {
	q := &api.Question{
		Model: c.String("model"), LoRA: c.String("lora"), Tenant: c.String("tenant"), Instance: c.String("instance"), CacheSalt: c.String("cache-salt"), BlockTokens: c.Int("block-size"),
	}
	if salt := c.String("additional-salt"); c.IsSet("additional-salt") {
		q.AdditionalSalt = &salt
	}
	text, file := c.String("tokens"), c.String("tokens-file")
	switch {
	case q.Model == "":
		return nil, command.UsageErrorf("query wants a --model")
	case (text == "") == (file == ""):
		return nil, command.UsageErrorf("query wants --tokens or --tokens-file")
	case q.BlockTokens < 0:
		return nil, command.UsageErrorf("--block-size %d; want 1 or more", q.BlockTokens)
	}
	if file != "" {
		read, err := readAll(file)
		if err != nil {
			return nil, command.UsageErrorf("--tokens-file: %w", err)
		}
		text = read
	}
	var err error
	if q.Tokens, err = parseTokens(text); err != nil {
		return nil, command.UsageErrorf("token ids: %w", err)
	}
	return q, nil
}

func readAll(name string) (string, error) {
	from := os.Stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return "", err
		}
		defer func() { _ = file.Close() }() // it was only read
		from = file
	}
	text, err := io.ReadAll(io.LimitReader(from, maxTokenText+1))
	if len(text) > maxTokenText {
		err = errors.Join(err, fmt.Errorf("%s has more than %d bytes", name, maxTokenText))
	}
	return string(text), err
}

// parseTokens reads a JSON list, or numbers between commas or white space.
func parseTokens(text string) (tokens []byte, err error) {
	var numbers []json.Number
	if trimmed := strings.TrimSpace(text); strings.HasPrefix(trimmed, "[") {
		decoder := json.NewDecoder(bytes.NewReader([]byte(trimmed)))
		decoder.UseNumber()
		if err := decoder.Decode(&numbers); err != nil {
			return nil, err
		}
	} else {
		for field := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(", \t\r\n", r) }) {
			numbers = append(numbers, json.Number(field))
		}
	}
	for i, number := range numbers {
		token, err := strconv.ParseUint(number.String(), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("number %d is %.32q; want 0 to 4294967295", i+1, number.String())
		}
		tokens = binary.LittleEndian.AppendUint32(tokens, uint32(token))
	}
	return tokens, nil
}

// printAnswer prints a table, who has most first.
func printAnswer(out io.Writer, answer map[string]map[string]api.InstanceAnswer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "INSTANCE\tRANK\tUSABLE\tGPU\tCPU\tDISK\tSTATE")
	for _, tenant := range slices.Sorted(maps.Keys(answer)) {
		rows := answer[tenant]
		names := slices.SortedFunc(maps.Keys(rows), func(a, b string) int {
			return cmp.Or(cmp.Compare(rows[b].LongestMatched, rows[a].LongestMatched), cmp.Compare(a, b))
		})
		for _, name := range names {
			row := rows[name]
			for _, rank := range slices.Sorted(maps.Keys(row.Ranks)) {
				r := row.Ranks[rank]
				fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%d\t%s\n", name, rank, r.Through.Disk, r.GPU, r.CPU, r.Disk, stateText(&row, &r))
			}
			if len(row.Ranks) == 0 {
				fmt.Fprintf(table, "%s\t-\t0\t0\t0\t0\tnot registered\n", name)
			}
		}
	}
	return table.Flush()
}

func stateText(row *api.InstanceAnswer, r *api.RankAnswer) string {
	text := r.State
	if r.CompleteSince > 0 {
		text += fmt.Sprintf(" before event %d", r.CompleteSince)
	}
	if row.Truncated {
		text += ", some dropped"
	}
	if row.Foreign {
		text += ", another model"
	}
	return text
}
