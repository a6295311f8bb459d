package command

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/doctor"
)

func configFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestConfigPrint(t *testing.T) {
	t.Setenv("MOONCAKE_SIDECAR_LINGER", "2m")
	t.Setenv("XDG_RUNTIME_DIR", "/run/a b")
	file := configFile(t, "worker:\n  queue_jobs: 7\n")
	i := invoke(t, nil, "--config", file, "config", "print", "--device", "host-4", "--json")
	var settings []config.Setting
	if err := json.Unmarshal(i.out.Bytes(), &settings); err != nil || i.code != ExitOK || i.ran {
		t.Fatalf("code %d, %v, %s%s", i.code, err, &i.out, &i.err)
	}
	got := map[string]string{}
	for _, s := range settings {
		got[s.Key] = fmt.Sprintf("%s %s %s", s.Value, s.Origin, s.Where)
	}
	for key, want := range map[string]string{
		"queue_jobs": "7 file " + file + ":2", "linger": "2m environment MOONCAKE_SIDECAR_LINGER", "device": "host-4 flag --device",
		"load_workers": "32 default ", "runtime_dir": "/run/a b/mooncake-sidecar default ",
	} {
		if got[key] != want {
			t.Errorf("%s is %q, want %q", key, got[key], want)
		}
	}
	// What it prints is a file that says the same.
	text := invoke(t, nil, "--config", file, "config", "print", "--device", "host-4").out.String()
	if !strings.Contains(text, "# flag --device") || !strings.Contains(text, "# autostarted: false") {
		t.Errorf("printed\n%s", text)
	}
	t.Setenv("MOONCAKE_SIDECAR_LINGER", "")
	again := invoke(t, nil, "--config", configFile(t, text))
	if again.code != ExitOK || again.cfg.QueueJobs != 7 || again.cfg.Linger != 2*time.Minute || again.cfg.Device != "host-4" || again.cfg.RuntimeDir != "/run/a b/mooncake-sidecar" {
		t.Errorf("read back as %+v, %s", again.cfg, &again.err)
	}
}

func TestYAMLScalars(t *testing.T) {
	for _, text := range []string{"", "-", "null", "a: b", "a #b", `"`, "'", "\n", "*a", "&a", "~", "?", "[", "\\x", "a:", "@", "plain", "16GiB", "/x/y", "é"} {
		if got := invoke(t, nil, "--config", configFile(t, "runtime_dir: /x\nworker:\n  device: "+yamlScalar(text)+"\n")); text == "" && got.cfg.Device != "host-0" ||
			text != "" && got.cfg.Device != text {
			t.Errorf("%q is read back as %q", text, got.cfg.Device)
		}
	}
}

func TestConfigCheck(t *testing.T) {
	good, bad := configFile(t, "linger: 1m\nlookupd:\n  lease_ttl: 5s\n"), configFile(t, "lingre: 1m\nworker:\n  device: x\n  load_workers: 0x\n")
	if i := invoke(t, nil, "config", "check", good); i.code != ExitOK || i.out.String() != good+": ok\n" || i.ran {
		t.Errorf("code %d, %s%s", i.code, &i.out, &i.err)
	}
	i := invoke(t, nil, "config", "check", bad)
	for _, want := range []string{`"lingre"; did you mean "linger"?`, "device", "load_workers", bad} {
		if i.code != ExitUsage || !strings.Contains(i.err.String(), want) {
			t.Errorf("code %d, %q is not in\n%s", i.code, want, &i.err)
		}
	}
	for _, args := range [][]string{{"config", "check"}, {"config", "check", good, good}, {"config", "chekc", good}, {"config", "check", "/nonexistent"}} {
		if i := invoke(t, nil, args...); i.code == ExitOK || i.ran {
			t.Errorf("%v: code %d", args, i.code)
		}
	}
}

func TestReload(t *testing.T) {
	file := configFile(t, "log_level: info\nworker:\n  queue_jobs: 7\n")
	var i *invocation
	steps := func(context.Context) error {
		check := func(text, level string, applied, ignored, fault string) {
			t.Helper()
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			got := i.control.Reload()
			if strings.Join(got.Applied, ";") != applied || strings.Join(got.Ignored, ";") != ignored || (fault == "") != (got.Error == "") || !strings.Contains(got.Error, fault) {
				t.Errorf("%q: %+v", text, got)
			}
			if i.control.Level.Level().String() != level {
				t.Errorf("%q: level %s, want %s", text, i.control.Level.Level(), level)
			}
		}
		check("log_level: debug\nworker:\n  queue_jobs: 8\n", "DEBUG", "log_level: info -> debug", "queue_jobs: 7 -> 8", "")
		check("log_level: debug\nworker:\n  queue_jobs: 8\n", "DEBUG", "", "queue_jobs: 7 -> 8", "") // still not in effect
		check("log_level: warn\nworker:\n  queue_jobs: many\n", "DEBUG", "", "", "queue_jobs")
		check("log_level: warn\nworker:\n  queue_jobs: 7\n", "WARN", "log_level: debug -> warn", "", "")
		i.control.Level.Set(slog.LevelError) // by an operator
		check("log_level: warn\nworker:\n  queue_jobs: 7\n", "WARN", "", "", "")
		return nil
	}
	i = &invocation{}
	run := invokeInto(t, i, steps, "--config", file)
	if run.code != ExitOK {
		t.Errorf("code %d, %s", run.code, &run.err)
	}
}

func TestHangupReachesTheDaemon(t *testing.T) {
	i := &invocation{}
	invokeInto(t, i, func(context.Context) error {
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			return err
		}
		timer := time.NewTimer(30 * time.Second)
		defer timer.Stop()
		select {
		case <-i.control.Hangups:
			return nil
		case <-timer.C:
			return fmt.Errorf("SIGHUP does not arrive")
		}
	})
	if i.code != ExitOK {
		t.Errorf("code %d, %s", i.code, &i.err)
	}
}

func TestJournalFormat(t *testing.T) {
	var out bytes.Buffer
	log, level := newLog("mooncake-test", &config.Common{LogLevel: "debug", LogFormat: config.FormatJournal}, &out)
	log.Debug("a")
	log.With("k", 1).WithGroup("g").Warn("b\nc", "took", time.Second)
	level.Set(slog.LevelError)
	log.Info("never")
	log.Error("d")
	want := "<7>level=DEBUG msg=a component=test\n<4>level=WARN msg=\"b\\nc\" component=test k=1 g.took=1s\n<3>level=ERROR msg=d component=test\n"
	if out.String() != want {
		t.Errorf("logged\n%swant\n%s", &out, want)
	}
}

func TestFormatFor(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	stat, known := info.Sys().(*syscall.Stat_t)
	if !known {
		t.Fatal("no inode")
	}
	stream := fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
	for journal, want := range map[string]string{"": config.FormatJSON, "1:2": config.FormatJSON, stream: config.FormatJournal} {
		if got := formatFor(file, journal); got != want {
			t.Errorf("with JOURNAL_STREAM=%q: %s, want %s", journal, got, want)
		}
	}
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	defer terminal.Close()
	if got := formatFor(terminal, ""); got != config.FormatText {
		t.Errorf("on a terminal: %s", got)
	}
}

func TestCompletion(t *testing.T) {
	for shell, want := range map[string]string{"bash": "complete -o", "zsh": "#compdef mooncake-test", "fish": "complete -c mooncake-test", "pwsh": "Register-ArgumentCompleter"} {
		i := invoke(t, nil, "completion", shell)
		if i.code != ExitOK || i.ran || !strings.Contains(i.out.String(), want) || strings.Contains(i.out.String(), "NAME") || strings.Contains(i.out.String(), "FUNC") {
			t.Errorf("%s: code %d, %s%s", shell, i.code, &i.out, &i.err)
		}
	}
	for _, args := range [][]string{{"completion"}, {"completion", "tcsh"}, {"completion", "bash", "zsh"}} {
		if i := invoke(t, nil, args...); i.code != ExitUsage {
			t.Errorf("%v: code %d", args, i.code)
		}
	}
	defer func(args []string) { os.Args = args }(os.Args)
	// What the scripts ask for; the daemon does not run for it.
	for want, args := range map[string][]string{
		"doctor": {"--generate-bash-completion"}, "--linger": {"-", "--generate-bash-completion"}, "check": {"config", "--generate-bash-completion"},
		"pwsh": {"completion", "--generate-bash-completion"},
	} {
		os.Args = append([]string{"mooncake-test"}, args...) // the library looks there
		if i := invoke(t, nil, args...); i.ran || !strings.Contains(i.out.String(), want) {
			t.Errorf("%v: ran %v, no %s in\n%s%s", args, i.ran, want, &i.out, &i.err)
		}
	}
}

// The bash script completes in a real bash.
func TestCompletionInBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash here")
	}
	script := invoke(t, nil, "completion", "bash").out.String() + `
mooncake-test() { echo "asked: $*" >&2; printf 'status\nconfig\ncompletion\n'; }
COMP_WORDS=(mooncake-test --linger 1m co); COMP_CWORD=3
_mooncake_test; echo "${COMPREPLY[*]}"
`
	out, err := exec.Command(bash, "-c", script).Output()
	if err != nil || strings.TrimSpace(string(out)) != "config completion" {
		t.Errorf("%v: completed to %q", err, out)
	}
}

func TestDoctor(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	i := invoke(t, nil, "--runtime-dir", dir, "doctor", "--json", "--python", "/nonexistent/python")
	var findings []doctor.Finding
	if err := json.Unmarshal(i.out.Bytes(), &findings); err != nil || i.code != 2 || i.ran {
		t.Fatalf("code %d, %v, %s%s", i.code, err, &i.out, &i.err)
	}
	failed := map[string]bool{}
	for _, f := range findings {
		failed[f.Check] = failed[f.Check] || f.Severity == doctor.Failure
	}
	if !failed["runtime_dir"] || !failed["vllm"] {
		t.Errorf("found %+v", findings)
	}
	text := invoke(t, nil, "--runtime-dir", dir, "doctor").out.String()
	if !strings.Contains(text, "chmod 700 "+dir) {
		t.Errorf("printed\n%s", text)
	}
}

// Every command shows an example.
func TestHelpHasExamples(t *testing.T) {
	for _, args := range [][]string{nil, {"status"}, {"config"}, {"config", "print"}, {"config", "check"}, {"doctor"}, {"completion"}} {
		i := invoke(t, nil, append(args, "--help")...)
		if i.code != ExitOK || i.ran || !strings.Contains(i.out.String(), "Examples:") || !strings.Contains(i.out.String(), "mooncake-test "+strings.Join(args, " ")) {
			t.Errorf("%v: code %d\n%s", args, i.code, &i.out)
		}
	}
}
