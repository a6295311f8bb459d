package compare

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
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
	if shared, err := hostScript(t, `[ "$*" = "--prepare kv2k" ] || exit 1`).Prepare(t.Context(), "kv2k", 1); err != nil || shared.Close() != nil {
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
	if _, err := hostScript(t, "echo no torch; exit 3").Prepare(t.Context(), "kv2k", 1); err == nil || !strings.Contains(err.Error(), "no torch") {
		t.Errorf("preparing: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := hostScript(t, "cat").Launch(ctx, Ours, "kv2k", 1, 1); err == nil {
		t.Error("a host that never gets ready was waited for")
	}
}

// TestHostsShareACluster: the cluster is up before the systems, which are told of
// it, and what a system says empties its node does so whenever it forgets.
func TestHostsShareACluster(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "done")
	hosts := hostScript(t, `case "$1" in
--prepare) exit ;;
cluster) echo '{"port": 4711, "sessions": ['$$'], "config": "/the/file"}' ;;
*) echo "$*" >>`+mark+`; echo '{"port": '`+engineThatResets(t)+`', "sessions": ['$$'], "forget": ["/bin/sh", "-c", "echo forgot >>`+mark+`"]}' ;;
esac
cat >/dev/null; echo "$1 ended" >>`+mark)
	hosts.Cluster = true
	shared, err := hosts.Prepare(t.Context(), "kv2k", 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := shared.CPUTime(); err != nil {
		t.Error(err)
	}
	system, err := hosts.Launch(t.Context(), Ours, "kv2k", 1<<30, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(system.Forget(t.Context(), false), system.Close(), shared.Close()); err != nil {
		t.Error(err)
	}
	done, err := os.ReadFile(mark)
	want := "ours --model kv2k --dir " + hosts.Dir + "/ours-2 --store-bytes 1073741824 --kv-gib 1 --cluster /the/file\nforgot\nours ended\ncluster ended\n"
	if err != nil || string(done) != want {
		t.Errorf("did %q, %v", done, err)
	}
	hosts = hostScript(t, `case "$1" in --prepare) exit ;; esac; echo '{"error": "no mooncake_master"}'; exit 1`)
	hosts.Cluster = true
	if _, err := hosts.Prepare(t.Context(), "kv2k", 1); err == nil || !strings.Contains(err.Error(), "no mooncake_master") {
		t.Errorf("without a cluster: %v", err)
	}
}

// TestANodeThatIsNotEmptied: what a system could not forget would be measured.
func TestANodeThatIsNotEmptied(t *testing.T) {
	hosts := hostScript(t, `echo '{"port": '`+engineThatResets(t)+`', "sessions": ['$$'], "forget": ["/bin/sh", "-c", "echo still there; exit 1"]}'; cat >/dev/null`)
	system, err := hosts.Launch(t.Context(), Ours, "kv2k", 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := system.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := system.Forget(t.Context(), false); err == nil || !strings.Contains(err.Error(), "still there") {
		t.Errorf("forgot: %v", err)
	}
}

// engineThatResets serves resets of an engine's cache, and returns its port.
func engineThatResets(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return at.Port()
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
