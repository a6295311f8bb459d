package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/daemon"
)

// invocation is one run of a command with its outputs.
type invocation struct {
	code     int
	out, err bytes.Buffer
	cfg      *config.WorkerConfig
	ran      bool
	control  daemon.Control
}

// invoke runs a command around a worker's configuration.
func invoke(t *testing.T, run func(context.Context) error, args ...string) *invocation {
	t.Helper()
	return invokeInto(t, &invocation{}, run, args...)
}

// invokeInto is invoke with the outcome where run can see it meanwhile.
func invokeInto(t *testing.T, i *invocation, run func(context.Context) error, args ...string) *invocation {
	t.Helper()
	i.cfg = &config.WorkerConfig{}
	d := &Daemon{
		Name: "mooncake-test", Usage: "tests", Example: "mooncake-test --device host-3",
		Fields: i.cfg.Fields(),
		Configure: func(source config.Source) (_ *config.Common, settings []config.Setting, err error) {
			if i.cfg, settings, err = config.LoadWorker(source); err != nil {
				return nil, nil, err
			}
			return &i.cfg.Common, settings, nil
		},
		Run: func(ctx context.Context, control daemon.Control, log *slog.Logger) error {
			i.control = control
			i.ran = true
			log.Debug("running")
			if run == nil {
				return nil
			}
			return run(ctx)
		},
		Status: func(context.Context) (*daemon.Status, error) {
			if i.cfg.Device == "host-9" {
				return nil, daemon.ErrNotRunning
			}
			return &daemon.Status{Daemon: "mooncake-test", PID: 7, Store: &daemon.StoreStatus{Chunks: 3, Counters: map[string]uint64{"gets_ready": 5}}}, nil
		},
		Out: &i.out, Err: &i.err,
	}
	i.code = d.Main(t.Context(), append([]string{"mooncake-test"}, args...))
	return i
}

func TestExitCodes(t *testing.T) {
	fail := func(err error) func(context.Context) error { return func(context.Context) error { return err } }
	unknown := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(unknown, []byte("nonsense: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		run  func(context.Context) error
		args []string
		code int
		says string // on standard error
	}{
		{"fine", nil, nil, ExitOK, ""},
		{"failure", fail(errors.New("disk on fire")), nil, ExitFailure, "disk on fire"},
		{"already running", fail(fmt.Errorf("x: %w", daemon.ErrAlreadyRunning)), nil, ExitRunning, "already running"},
		{"no such device", fail(daemon.ErrNoDevice), nil, ExitUsage, "device"},
		{"unknown flag", nil, []string{"--nonsense"}, ExitUsage, "nonsense"},
		{"flag without value", nil, []string{"--linger"}, ExitUsage, "linger"},
		{"bad value", nil, []string{"--linger", "soon"}, ExitUsage, "--linger"},
		{"bad field", nil, []string{"--device", "gpu"}, ExitUsage, "device"},
		{"argument", nil, []string{"start"}, ExitUsage, "start"},
		{"unknown key", nil, []string{"--config", unknown}, ExitUsage, "nonsense"},
		{"no file", nil, []string{"--config", "/nonexistent"}, ExitUsage, "/nonexistent"},
		{"status", nil, []string{"status"}, ExitOK, ""},
		{"status of none", nil, []string{"status", "--device", "host-9"}, ExitFailure, "not running"},
		{"status with a bad flag", nil, []string{"status", "--nonsense"}, ExitUsage, "nonsense"},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := invoke(t, c.run, c.args...)
			if i.code != c.code {
				t.Errorf("exit code %d, want %d; %s", i.code, c.code, &i.err)
			}
			if !strings.Contains(i.err.String(), c.says) || c.says == "" && i.err.Len() > 0 {
				t.Errorf("says %q, want %q", &i.err, c.says)
			}
			if c.code == ExitUsage && i.ran && c.run == nil {
				t.Error("the daemon ran")
			}
		})
	}
}

func TestFlagsBeforeAndBehindTheSubcommand(t *testing.T) {
	for _, args := range [][]string{
		{"--device", "host-4", "status"},
		{"status", "--device", "host-4"},
		{"--device", "host-1", "status", "--device", "host-4"},
	} {
		if i := invoke(t, nil, args...); i.code != ExitOK || i.cfg.Device != "host-4" {
			t.Errorf("%v: device %s, code %d, %s", args, i.cfg.Device, i.code, &i.err)
		}
	}
	t.Setenv("MOONCAKE_SIDECAR_DEVICE", "host-5")
	if i := invoke(t, nil); i.cfg.Device != "host-5" {
		t.Errorf("from the environment: device %s", i.cfg.Device)
	}
	if i := invoke(t, nil, "--device", "host-6", "--autostarted", "--verify=true"); i.cfg.Device != "host-6" || !i.cfg.Autostarted {
		t.Errorf("a flag goes before the environment: %+v", i.cfg)
	}
}

func TestStatusFormats(t *testing.T) {
	var s daemon.Status
	i := invoke(t, nil, "status", "--json")
	if err := json.Unmarshal(i.out.Bytes(), &s); err != nil || s.PID != 7 || s.Store.Chunks != 3 {
		t.Errorf("%v in %s", err, &i.out)
	}
	i = invoke(t, nil, "status")
	for _, want := range []string{"mooncake-test", "chunks", "gets_ready", "7"} {
		if !strings.Contains(i.out.String(), want) {
			t.Errorf("%q is not in:\n%s", want, &i.out)
		}
	}
}

func TestHelpAndVersion(t *testing.T) {
	help := invoke(t, nil, "--help")
	for _, want := range []string{"mooncake-test --device host-3", "--runtime-dir", "--autostarted", "EXIT CODES", "already running", "MOONCAKE_SIDECAR_RUNTIME_DIR"} {
		if help.code != ExitOK || help.ran || !strings.Contains(help.out.String(), want) {
			t.Errorf("%q is not in the help (code %d):\n%s", want, help.code, &help.out)
		}
	}
	if v := invoke(t, nil, "--version"); v.code != ExitOK || v.ran || !strings.Contains(v.out.String(), "mooncake-test version") {
		t.Errorf("code %d: %s", v.code, &v.out)
	}
}

func TestSignalEndsTheDaemon(t *testing.T) {
	i := invoke(t, func(ctx context.Context) error {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			return err
		}
		timer := time.NewTimer(30 * time.Second)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			return errors.New("the signal does not arrive")
		}
	})
	if i.code != ExitOK {
		t.Errorf("exit code %d: %s", i.code, &i.err)
	}
}

func TestLogLevelAndFormat(t *testing.T) {
	i := invoke(t, nil, "--log-level", "debug", "--log-format", "json")
	if !strings.HasPrefix(i.err.String(), "{") || !strings.Contains(i.err.String(), "running") {
		t.Errorf("logged %q", &i.err)
	}
}
