package command

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// configCommand has config print and config check.
func (d *Daemon) configCommand() *cli.Command {
	return &cli.Command{
		Name: "config", Usage: "show and check the configuration", OnUsageError: usageError,
		Description: examples(d.Name+" config print --config /etc/mooncake-sidecar.yaml", d.Name+" config check /etc/mooncake-sidecar.yaml"),
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return UsageErrorf("config has no subcommand %q; there are print and check", c.Args().First())
			}
			return cli.ShowSubcommandHelp(c)
		},
		Subcommands: []*cli.Command{
			{
				Name: "print", Usage: "print the effective settings and where each comes from", OnUsageError: usageError,
				Description: examples(d.Name+" config print", d.Name+" --store-bytes 16GiB config print --json") + "\n\nThe text is a configuration file that says the same.",
				Flags:       append(d.flags(), &cli.BoolFlag{Name: "json", Usage: "print JSON"}),
				Action: func(c *cli.Context) error {
					_, settings, err := d.configure(c)
					if err != nil {
						return err
					}
					if c.Bool("json") {
						return PrintJSON(d.Out, settings)
					}
					return printSettings(d.Out, settings)
				},
			},
			{
				Name: "check", Usage: "report every fault of a configuration file", ArgsUsage: "FILE", OnUsageError: usageError,
				Description: examples(d.Name+" config check /etc/mooncake-sidecar.yaml") + "\n\nThe sections of all daemons are checked. Exit code 2 when there are faults.",
				Action: func(c *cli.Context) error {
					if c.NArg() != 1 {
						return UsageErrorf("config check wants one file, got %d arguments", c.NArg())
					}
					if err := config.CheckFile(c.Args().First(), nil); err != nil {
						return fmt.Errorf("%w: %w", errUsage, err)
					}
					_, err := fmt.Fprintf(d.Out, "%s: ok\n", c.Args().First())
					return err
				},
			},
		},
	}
}

// printSettings writes a configuration file; what a file can't say is a comment.
func printSettings(out io.Writer, settings []config.Setting) error {
	var b strings.Builder
	section := ""
	for _, s := range settings {
		if s.Section != section {
			section = s.Section
			fmt.Fprintf(&b, "%s:\n", section)
		}
		from := string(s.Origin)
		if s.Where != "" {
			from += " " + s.Where
		}
		line := s.Key + ": " + yamlScalar(s.Value)
		if s.NotInFile {
			line = "# " + line
		}
		if section != "" {
			line = "  " + line
		}
		fmt.Fprintf(&b, "%-50s # %s\n", line, strings.ReplaceAll(from, "\n", " "))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// yamlScalar quotes what YAML would read as something else.
func yamlScalar(text string) string {
	plain := text != "" && !strings.ContainsAny(text, " #\"'{}[],&*!|>%@`\n\t\\") && !strings.HasPrefix(text, "-") && !strings.HasPrefix(text, "?") &&
		!strings.Contains(text, ": ") && !strings.HasSuffix(text, ":") && text != "null" && text != "~"
	if plain {
		return text
	}
	quoted, err := json.Marshal(text) // a JSON text is a YAML text
	if err != nil {
		panic("BUG: a text that is no JSON: " + err.Error())
	}
	return string(quoted)
}

// PrintJSON writes v, indented.
func PrintJSON(out io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	_, err = fmt.Fprintf(out, "%s\n", text)
	return err
}

// examples is the part of a help text that shows invocations.
func examples(lines ...string) string { return "Examples:\n" + strings.Join(lines, "\n") }
