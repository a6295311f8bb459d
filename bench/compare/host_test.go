package compare

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// hostScript makes hosts that run a shell script in place of host.py.
func hostScript(t *testing.T, script string) *Hosts {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "bench", "compare", "hosts")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "host.py"), []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	return &Hosts{Python: "/bin/sh", Root: root, Dir: t.TempDir()}
}

func TestHosts(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "ended")
	hosts := hostScript(t, `echo '{"port": 4711, "sessions": ['$$']}'; cat >/dev/null; echo "$*" >`+mark)
	hosts.Nap = true
	system, err := hosts.Launch(t.Context(), Ours, "kv2k", 1<<30, 2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := system.CPUTime(); err != nil || system.Name() != Ours {
		t.Errorf("%s: %v", system.Name(), err)
	}
	if err := system.Close(); err != nil {
		t.Error(err)
	}
	// It ended since its input did, and had been told what to run.
	arguments, err := os.ReadFile(mark)
	if err != nil || !strings.HasPrefix(string(arguments), "ours --model kv2k --dir "+hosts.Dir+"/ours-1 --store-bytes 1073741824 --kv-gib 2 --nap") {
		t.Errorf("ran with %q, %v", arguments, err)
	}
	if err := hostScript(t, `[ "$*" = "--prepare kv2k" ] || exit 1`).Prepare(t.Context(), "kv2k"); err != nil {
		t.Error(err)
	}
}

func TestHostsFail(t *testing.T) {
	for name, test := range map[string]struct{ script, want string }{
		"it says why":   {`echo '{"error": "LMCache is not installed"}'; exit 1`, "LMCache is not installed"},
		"it dies":       {"echo 'Traceback: no vllm' >&2; exit 1", "no vllm"},
		"nonsense":      {"echo hello", "decoding its host's report"},
		"no port":       {`echo '{"sessions": [1]}'`, "lacks port"},
		"an empty line": {"echo", "decoding"},
	} {
		if _, err := hostScript(t, test.script).Launch(t.Context(), LMCache, "kv2k", 1, 1); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, not %q", name, err, test.want)
		}
	}
	if err := hostScript(t, "echo no torch; exit 3").Prepare(t.Context(), "kv2k"); err == nil || !strings.Contains(err.Error(), "no torch") {
		t.Errorf("preparing: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := hostScript(t, "cat").Launch(ctx, Ours, "kv2k", 1, 1); err == nil {
		t.Error("a host that never gets ready was waited for")
	}
}

func TestTail(t *testing.T) {
	var kept tail
	for range 100 {
		if _, err := kept.Write([]byte(strings.Repeat("x", 100))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := kept.Write([]byte("the end\n")); err != nil {
		t.Fatal(err)
	}
	if text := kept.suffix(); len(text) > tailBytes+1 || !strings.HasSuffix(text, "the end") {
		t.Errorf("kept %d bytes, to %q", len(text), text[len(text)-10:])
	}
}
