package command

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"

	"github.com/urfave/cli/v2"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/daemon"
	"github.com/mooncake-sidecar/sidecar/internal/doctor"
	"github.com/mooncake-sidecar/sidecar/internal/version"
)

// doctorError carries doctor's exit code; the findings say all else.
type doctorError struct{ code int }

func (e *doctorError) Error() string {
	if e.code >= ExitUsage {
		return "there are errors"
	}
	return "there are warnings"
}

// doctorCommand looks at the machine.
func (d *Daemon) doctorCommand() *cli.Command {
	return &cli.Command{
		Name: "doctor", Usage: "look for what keeps the daemons and engines here from working well", OnUsageError: usageError,
		Description: examples(d.Name+" doctor --python .venv/bin/python", d.Name+" --store-bytes 64GiB doctor --json") +
			"\n\nRun it as the user, in the environment and in the container of the engine. It changes nothing.\n" +
			"Exit code 0: nothing to mend; 1: warnings; 2: errors.",
		Flags: append(d.flags(),
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			&cli.StringFlag{Name: "python", Usage: "`interpreter` that has vLLM (default: python3 in PATH, if it has vLLM)"},
			&cli.StringFlag{Name: "hash-algo", Usage: "`value` of the engine's --prefix-caching-hash-algo (default: vLLM's)"},
		),
		Action: func(c *cli.Context) error {
			common, settings, err := d.configure(c)
			if err != nil {
				return err
			}
			dir := daemon.Dir(common.RuntimeDir)
			python := c.String("python")
			list := func(ctx context.Context) []doctor.Daemon { return runningDaemons(ctx, dir) }
			system := doctor.NewSystem(python, list)
			if python == "" {
				python = guessPython(c.Context, system, list)
			}
			system.Machine = sync.OnceValues(daemon.Topology)
			if valueOf(settings, "store") == config.StoreMooncake {
				way := &config.Mooncake{StorePython: valueOf(settings, "store_python"), Library: valueOf(settings, "mooncake_library"), ConfigPath: valueOf(settings, "mooncake_config")}
				system.Cluster = func(ctx context.Context) doctor.Cluster { return daemon.ProbeCluster(ctx, way) }
			}
			findings := doctor.Run(c.Context, system, &doctor.Settings{
				RuntimeDir: dir, StoreBytes: storeBytes(settings), NUMA: valueOf(settings, "numa"), DiskDir: valueOf(settings, "disk_dir"), DiskBytes: diskBytes(settings), Version: version.Version, PythonPath: python, HashAlgorithm: c.String("hash-algo"),
			})
			if c.Bool("json") {
				err = PrintJSON(d.Out, findings)
			} else {
				err = printFindings(d.Out, findings)
			}
			if code := doctor.ExitCode(findings); err == nil && code != 0 {
				return &doctorError{code}
			}
			return err
		},
	}
}

// guessPython takes the interpreter in the path, if it has vLLM, into system.
func guessPython(ctx context.Context, system *doctor.System, list func(context.Context) []doctor.Daemon) string {
	path, err := exec.LookPath("python3")
	if err != nil {
		return ""
	}
	found := doctor.NewSystem(path, list)
	if python, err := found.Python(ctx); err != nil || python.VLLM == "" {
		return ""
	}
	*system = *found
	return path
}

// storeBytes is the size that lookupd would make the store, whichever daemon
// asks.
func storeBytes(settings []config.Setting) uint64 {
	for _, s := range settings {
		if s.Key == "store_bytes" {
			if size, err := config.ParseSize(s.Value); err == nil {
				return uint64(size)
			}
		}
	}
	lookupd := &config.LookupdConfig{}
	lookupd.SetDefaults(config.MachineRoot())
	return uint64(lookupd.StoreBytes)
}

// valueOf returns a setting's value, "" for one that the daemon does not have.
func valueOf(settings []config.Setting, key string) string {
	for _, s := range settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

func diskBytes(settings []config.Setting) uint64 {
	size, err := config.ParseSize(valueOf(settings, "disk_bytes"))
	if err != nil {
		return 0
	}
	return uint64(size)
}

func runningDaemons(ctx context.Context, dir string) []doctor.Daemon {
	var all []doctor.Daemon
	for _, s := range daemon.Running(ctx, dir) {
		all = append(all, doctor.Daemon{Name: s.Daemon, Version: s.Version, Socket: s.Socket, PID: s.PID, Autostarted: s.Autostarted, Ready: s.StoreReady})
	}
	return all
}

func printFindings(out io.Writer, findings []doctor.Finding) error {
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&b, "%-8s %-20s %s", f.Severity, f.Check, f.What)
		if f.Where != "" {
			fmt.Fprintf(&b, " (%s)", f.Where)
		}
		b.WriteString("\n")
		if f.Do != "" && f.Severity != doctor.OK {
			fmt.Fprintf(&b, "%30s%s\n", "-> ", f.Do)
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}
