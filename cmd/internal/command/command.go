package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/daemon"
	"github.com/mooncake-sidecar/sidecar/internal/version"
)

// Exit codes.
const (
	ExitOK      = 0
	ExitFailure = 1 // the daemon failed; status: it is not running or does not answer
	ExitUsage   = 2 // flags, environment or configuration file
	ExitRunning = 3 // another daemon has the runtime directory
	// ExitUnreachable: ctl finds no daemon in the runtime directory.
	ExitUnreachable = 3
)

const exitCodes = `
EXIT CODES:
   0  stopped by a signal, or after the linger time
   1  runtime failure; status: not running, or no answer; doctor: warnings
   2  bad flags, environment or configuration file; doctor: errors
   3  already running in this runtime directory; ctl: no daemon answers there

ENVIRONMENT:
   Every flag has a variable: --runtime-dir is MOONCAKE_SIDECAR_RUNTIME_DIR.
   A flag goes before its variable, a variable before the configuration file.`

// errUsage marks what the user has to change.
var errUsage = errors.New("usage")

// UsageErrorf is an error that the user has to mend on the command line.
func UsageErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: %w; see --help", errUsage, fmt.Errorf(format, args...))
}

// codedError is an error with an exit code of its own.
type codedError struct {
	code int
	error
}

// Unwrap returns the error itself.
func (e *codedError) Unwrap() error { return e.error }

// WithCode gives a subcommand's error an exit code of its own.
func WithCode(code int, err error) error { return &codedError{code, err} }

// Daemon describes a command.
type Daemon struct {
	Name, Usage string
	// Example shows invocations, one a line.
	Example string
	// Fields are the settings that become flags.
	Fields []config.Field
	// Configure loads the configuration; it is called before Run and Status, and
	// again by a running daemon, which goes on with what it was started with.
	Configure func(config.Source) (*config.Common, []config.Setting, error)
	// Run is the daemon.
	Run func(ctx context.Context, control daemon.Control, log *slog.Logger) error
	// Status asks a running daemon.
	Status func(ctx context.Context) (*daemon.Status, error)
	// Modes are subcommands that run the daemon in another way.
	Modes []Mode
	// Commands are further subcommands.
	Commands []Subcommand
	// Out and Err are the standard streams.
	Out, Err io.Writer
}

// Mode is another way to run a daemon.
type Mode struct {
	Name, Usage string
	// Example shows invocations, one a line.
	Example string
	Run     func(ctx context.Context, control daemon.Control, log *slog.Logger) error
}

// Subcommand is a subcommand beside status. It has the daemon's flags besides its
// own, or with subcommands only those that say where the daemon is, and is run
// once the configuration is loaded.
type Subcommand struct {
	Name, Usage, Description string
	Flags                    []cli.Flag
	// Settings are the daemon's flags that it has besides --config; nil: as above.
	Settings []string
	// Run writes to the standard output. Nil with Commands: it prints help.
	Run func(c *cli.Context, out io.Writer) error
	// Commands are subcommands of its own.
	Commands []Subcommand
}

// Main runs the command and returns its exit code.
func (d *Daemon) Main(ctx context.Context, args []string) int {
	app := &cli.App{
		Name: d.Name, Usage: d.Usage, Version: version.Version, HideHelpCommand: true,
		UsageText: d.Name + " [flags]\n" + d.Name + " [flags] status [--json]\n" + d.Name + " [flags] config print [--json]\n" +
			d.Name + " config check FILE\n" + d.Name + " [flags] doctor [--json]\n" + d.Name + " completion bash|zsh|fish|pwsh",
		Description:    examples(d.Example),
		Flags:          d.flags(),
		Writer:         d.Out,
		ErrWriter:      d.Err,
		Action:         d.runWith(d.Run),
		OnUsageError:   usageError,
		ExitErrHandler: func(*cli.Context, error) {}, // the code is ours to choose
		Commands: []*cli.Command{{
			Name: "status", Usage: "ask the running daemon", OnUsageError: usageError, Action: d.status,
			Description: examples(d.Name+" status", d.Name+" --runtime-dir /run/mooncake-sidecar status --json"),
			Flags:       append(d.flags(), &cli.BoolFlag{Name: "json", Usage: "print JSON"}),
		}, d.configCommand(), d.doctorCommand(), d.completionCommand()},
		EnableBashCompletion:  true,
		CustomAppHelpTemplate: cli.AppHelpTemplate + exitCodes + "\n",
	}
	for _, mode := range d.Modes {
		app.UsageText += "\n" + d.Name + " [flags] " + mode.Name
		app.Commands = append(app.Commands, &cli.Command{
			Name: mode.Name, Usage: mode.Usage, Description: examples(mode.Example), Flags: d.flags(), OnUsageError: usageError, Action: d.runWith(mode.Run),
		})
	}
	for _, sub := range d.Commands {
		app.UsageText += "\n" + d.Name + " [flags] " + sub.Name + " [--help]"
		flags := d.flags()
		if len(sub.Commands) > 0 {
			flags = d.placeFlags()
		}
		if sub.Settings != nil {
			flags = d.someFlags(append(sub.Settings, "config"))
		}
		app.Commands = append(app.Commands, d.subcommand(&sub, flags))
	}
	err := app.RunContext(ctx, args)
	if err != nil {
		fmt.Fprintf(d.Err, "%s: %v\n", d.Name, err)
	}
	return exitCode(err)
}

// subcommand makes a command of a description; it and those below it have flags
// besides their own.
func (d *Daemon) subcommand(sub *Subcommand, flags []cli.Flag) *cli.Command {
	made := &cli.Command{
		Name: sub.Name, Usage: sub.Usage, Description: sub.Description, OnUsageError: usageError, Flags: append(slices.Clone(sub.Flags), flags...),
		Action: func(c *cli.Context) error {
			if sub.Run == nil {
				if c.Args().Present() {
					return UsageErrorf("%s has no subcommand %q", sub.Name, c.Args().First())
				}
				return cli.ShowSubcommandHelp(c)
			}
			if _, _, err := d.configure(c); err != nil {
				return err
			}
			return sub.Run(c, d.Out)
		},
	}
	for i := range sub.Commands {
		made.Subcommands = append(made.Subcommands, d.subcommand(&sub.Commands[i], d.placeFlags()))
	}
	return made
}

func exitCode(err error) int {
	var doctor *doctorError
	var coded *codedError
	switch {
	case errors.As(err, &doctor):
		return doctor.code
	case errors.As(err, &coded):
		return coded.code
	case err == nil:
		return ExitOK
	case errors.Is(err, daemon.ErrAlreadyRunning):
		return ExitRunning
	case errors.Is(err, errUsage), errors.Is(err, config.ErrValue), errors.Is(err, daemon.ErrNoDevice):
		return ExitUsage
	}
	return ExitFailure
}

func usageError(_ *cli.Context, err error, _ bool) error {
	return fmt.Errorf("%w: %w; see --help", errUsage, err)
}

func (d *Daemon) flags() []cli.Flag {
	flags := []cli.Flag{&cli.StringFlag{Name: "config", Usage: "configuration `file` (YAML)", EnvVars: []string{config.EnvPrefix + "CONFIG"}}}
	for i := range d.Fields {
		field := &d.Fields[i]
		if field.Bool {
			flags = append(flags, &cli.BoolFlag{Name: field.Flag(), Usage: field.Usage()})
		} else {
			flags = append(flags, &cli.StringFlag{Name: field.Flag(), Usage: field.Usage()})
		}
	}
	return flags
}

// placeFlags are those of flags that say where the daemon is: what commands need
// that talk to it.
func (d *Daemon) placeFlags() []cli.Flag { return d.someFlags([]string{"config", "runtime-dir"}) }

// someFlags are those of some names.
func (d *Daemon) someFlags(names []string) []cli.Flag {
	return slices.DeleteFunc(d.flags(), func(f cli.Flag) bool { return !slices.Contains(names, f.Names()[0]) })
}

// configure loads the configuration with the flags of the command line.
func (d *Daemon) configure(c *cli.Context) (*config.Common, []config.Setting, error) {
	if c.Args().Present() {
		return nil, nil, fmt.Errorf("%w: unexpected argument %q; see --help", errUsage, c.Args().First())
	}
	source := config.Source{Flag: func(name string) (string, bool) { return given(c, name) }}
	source.File, _ = given(c, "config")
	common, settings, err := d.Configure(source)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	for i := range settings {
		if s := &settings[i]; s.Key == "runtime_dir" && s.Value == "" {
			s.Value = daemon.Dir("") // what the daemon would take
		}
	}
	return common, settings, nil
}

// given finds a flag where it was given: behind the subcommand or before it.
func given(c *cli.Context, name string) (string, bool) {
	for _, level := range c.Lineage() {
		if level.Command == nil || !sets(level, name) {
			continue
		}
		switch value := level.Value(name).(type) {
		case bool:
			return strconv.FormatBool(value), true
		default:
			return fmt.Sprint(value), true
		}
	}
	return "", false
}

// sets tells whether the flag was given at this very level.
func sets(c *cli.Context, name string) bool {
	for _, local := range c.LocalFlagNames() {
		if local == name {
			return true
		}
	}
	return false
}

// runWith runs the daemon.
func (d *Daemon) runWith(run func(context.Context, daemon.Control, *slog.Logger) error) cli.ActionFunc {
	return func(c *cli.Context) error { return d.run(c, run) }
}

func (d *Daemon) run(c *cli.Context, run func(context.Context, daemon.Control, *slog.Logger) error) error {
	// From here on SIGHUP does not end the process.
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	common, settings, err := d.configure(c)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(c.Context, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	log, level := newLog(d.Name, common, d.Err)
	again := &reloader{
		load: func() (*config.Common, []config.Setting, error) { return d.configure(c) }, level: level, current: settings,
	}
	return run(ctx, daemon.Control{Level: level, Reload: again.reload, Hangups: hangups, Settings: again.settings}, log)
}

// Exit runs a daemon with the process's arguments and streams, and ends the
// process.
func Exit(d *Daemon) {
	d.Out, d.Err = os.Stdout, os.Stderr
	os.Exit(d.Main(context.Background(), os.Args))
}
