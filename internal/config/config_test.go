package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"gopkg.in/yaml.v3"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "1": 1, "1048576": 1 << 20, "64MiB": 64 << 20, "4GiB": 4 << 30, "4gib": 4 << 30, " 4 GiB ": 4 << 30,
		"1.5GiB": 3 << 29, "2G": 2 << 30, "1GB": 1e9, "100B": 100, "1TiB": 1 << 40, ".5KiB": 512,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%q is %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "GiB", "-1", "-1GiB", "1.5", "1e3GiB", "0x10", "0x1p3MiB", "nanGiB", "infGiB", "4 Gi B", "4PiB", "9999999999TiB", "99999999999999999999", "1_000KiB"} {
		if got, err := ParseSize(text); !errors.Is(err, ErrValue) {
			t.Errorf("%q is %d, %v, want ErrValue", text, got, err)
		}
	}
	for size, want := range map[Size]string{0: "0", 1: "1", 1 << 10: "1KiB", 3 << 29: "1536MiB", 4 << 30: "4GiB", 1000: "1000", 1 << 50: "1024TiB"} {
		if got := size.String(); got != want {
			t.Errorf("%d is written %q, want %q", uint64(size), got, want)
		}
		if back, err := ParseSize(want); err != nil || back != size {
			t.Errorf("%q reads back as %d, %v", want, back, err)
		}
	}
}

func TestDefaultStoreBytes(t *testing.T) {
	const gib = 1 << 30
	text := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	machine := text("MemFree: 1 kB\nMemTotal:       16777216 kB\n") // 16 GiB
	for name, c := range map[string]struct {
		files fstest.MapFS
		want  Size
	}{
		"no limit":           {fstest.MapFS{"proc/meminfo": machine}, 4 * gib},
		"nothing readable":   {fstest.MapFS{}, minDefaultStore},
		"broken meminfo":     {fstest.MapFS{"proc/meminfo": text("MemTotal: lots\n")}, minDefaultStore},
		"v2 without limit":   {fstest.MapFS{"proc/meminfo": machine, "sys/fs/cgroup/memory.max": text("max\n")}, 4 * gib},
		"v2 container":       {fstest.MapFS{"proc/meminfo": machine, "sys/fs/cgroup/memory.max": text("8589934592\n")}, 2 * gib},
		"v1 container":       {fstest.MapFS{"proc/meminfo": machine, "sys/fs/cgroup/memory/memory.limit_in_bytes": text("8589934592\n")}, 2 * gib},
		"v1 without limit":   {fstest.MapFS{"proc/meminfo": machine, "sys/fs/cgroup/memory/memory.limit_in_bytes": text("9223372036854771712\n")}, 4 * gib},
		"more than there is": {fstest.MapFS{"proc/meminfo": machine, "sys/fs/cgroup/memory.max": text("99999999999\n")}, 4 * gib},
		"v2 ancestor": {fstest.MapFS{
			"proc/meminfo": machine, "proc/self/cgroup": text("0::/a.slice/b.service\n"),
			"sys/fs/cgroup/a.slice/b.service/memory.max": text("max\n"), "sys/fs/cgroup/a.slice/memory.max": text("8589934592\n"),
		}, 2 * gib},
		"v1 own group": {fstest.MapFS{
			"proc/meminfo": machine, "proc/self/cgroup": text("7:cpu:/x\n6:hugetlb,memory:/x/y\n"),
			"sys/fs/cgroup/memory/x/y/memory.limit_in_bytes": text("8589934592\n"),
		}, 2 * gib},
		"outside its root": {fstest.MapFS{
			"proc/meminfo": machine, "proc/self/cgroup": text("0::/../../etc\nnonsense\n"),
		}, 4 * gib},
		"small machine": {fstest.MapFS{"proc/meminfo": text("MemTotal: 524288 kB\n")}, minDefaultStore},
		"rounded":       {fstest.MapFS{"proc/meminfo": text("MemTotal: 2000000 kB\n")}, 448 << 20},
	} {
		if got := DefaultStoreBytes(c.files); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// source makes a Source of maps and a file's text.
func source(t *testing.T, flags, env map[string]string, text string) Source {
	t.Helper()
	src := Source{
		Flag: func(name string) (string, bool) { v, ok := flags[name]; return v, ok },
		Env:  func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		Root: fstest.MapFS{},
	}
	if text != "" {
		src.File = filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(src.File, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return src
}

func TestPrecedence(t *testing.T) {
	const text = "runtime_dir: /file\nlinger: 1m\nlookupd:\n  store_bytes: 1GiB\n  lease_ttl: 10s\nworker:\n  device: cuda-1\n"
	env := map[string]string{"MOONCAKE_SIDECAR_STORE_BYTES": "2GiB", "MOONCAKE_SIDECAR_RUNTIME_DIR": "/env", "MOONCAKE_SIDECAR_LOG_LEVEL": ""}
	c, err := LoadLookupd(source(t, map[string]string{"store-bytes": "3GiB", "autostarted": "true"}, env, text))
	if err != nil {
		t.Fatal(err)
	}
	want := LookupdConfig{
		Common:     Common{RuntimeDir: "/env", LogLevel: "info", LogFormat: "text", Linger: time.Minute, Autostarted: true},
		StoreBytes: 3 << 30, LeaseTTL: 10 * time.Second,
	}
	if *c != want {
		t.Errorf("got %+v, want %+v", *c, want)
	}
	w, err := LoadWorker(source(t, nil, env, text))
	if err != nil || w.Device != "cuda-1" || w.DeviceKind() != "cuda" || w.RuntimeDir != "/env" || w.Verify {
		t.Errorf("got %+v, %v", w, err)
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	_, err := LoadLookupd(source(t,
		map[string]string{"store-bytes": "lots", "linger": "soon"},
		map[string]string{"MOONCAKE_SIDECAR_LEASE_TTL": "1ms", "MOONCAKE_SIDECAR_RUNTIME_DIR": "here"},
		"log_level: loud\nlog_format: xml\n"))
	if !errors.Is(err, ErrValue) {
		t.Fatalf("got %v, want ErrValue", err)
	}
	for _, want := range []string{"--store-bytes", "--linger", "lease_ttl", "runtime_dir", "log_level", "log_format"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	_, err = LoadWorker(source(t, map[string]string{"device": "gpu0", "queue-jobs": "-1", "verify": "maybe", "load-workers": "x", "batch-bytes": "1"}, nil, ""))
	for _, want := range []string{"device", "queue_jobs", "--verify", "--load-workers", "batch_bytes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}

func TestFilesRefused(t *testing.T) {
	for name, text := range map[string]string{
		"unknown key":        "runtime_dirr: /x\n",
		"unknown in section": "lookupd:\n  store_byte: 1GiB\n",
		"common in section":  "lookupd:\n  runtime_dir: /x\n",
		"autostarted":        "autostarted: true\n",
		"unknown section":    "conductorr: {}\n",
		"bad size":           "lookupd:\n  store_bytes: many\n",
		"size is a list":     "lookupd:\n  store_bytes: [1]\n",
		"not YAML":           "a: [\n",
		"no mapping":         "- a\n",
		"two documents":      "linger: 1m\n---\nlinger: 2m\n",
		"double key":         "linger: 1m\nlinger: 2m\n",
	} {
		if _, err := LoadLookupd(source(t, nil, nil, text)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := LoadLookupd(source(t, nil, nil, "runtime_dirr: /x\n")); err == nil || !strings.Contains(err.Error(), "runtime_dirr") {
		t.Errorf("the unknown key is not named: %v", err)
	}
	src := source(t, nil, nil, "")
	src.File = "/nonexistent/config.yaml"
	if _, err := LoadWorker(src); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want ErrNotExist", err)
	}
	src.File = filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(src.File, []byte(strings.Repeat("#", maxFileBytes+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadWorker(src); !errors.Is(err, ErrValue) {
		t.Errorf("a huge file: %v", err)
	}
	if _, err := LoadWorker(source(t, nil, nil, "# nothing\n")); err != nil {
		t.Errorf("an empty file: %v", err)
	}
}

// Every key of the file's structs is a field, or has no flag by intent.
func TestFieldsCoverTheStructs(t *testing.T) {
	var lookupd LookupdConfig
	var worker WorkerConfig
	for name, c := range map[string]struct {
		section any
		fields  []Field
	}{"lookupd": {lookupd, lookupd.Fields()}, "worker": {worker, worker.Fields()}} {
		data, err := yaml.Marshal(c.section)
		if err != nil {
			t.Fatal(err)
		}
		common, err := yaml.Marshal(Common{})
		if err != nil {
			t.Fatal(err)
		}
		keys := map[string]any{}
		if err := errors.Join(yaml.Unmarshal(data, &keys), yaml.Unmarshal(common, &keys)); err != nil {
			t.Fatal(err)
		}
		for key := range keys {
			if !slices.ContainsFunc(c.fields, func(f Field) bool { return f.Key == key }) {
				t.Errorf("%s: key %s has no field", name, key)
			}
		}
		for _, f := range c.fields {
			if _, ok := keys[f.Key]; !ok && f.Key != "autostarted" {
				t.Errorf("%s: field %s has no key", name, f.Key)
			}
		}
	}
}

func TestRuntimeDir(t *testing.T) {
	env := func(values map[string]string) func(string) (string, bool) {
		return func(name string) (string, bool) { v, ok := values[name]; return v, ok }
	}
	if got := DefaultRuntimeDir(env(map[string]string{"XDG_RUNTIME_DIR": "/run/user/7"}), 7); got != "/run/user/7/mooncake-sidecar" {
		t.Errorf("got %s", got)
	}
	for _, unset := range []map[string]string{nil, {"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": "relative"}} {
		if got := DefaultRuntimeDir(env(unset), 7); got != "/tmp/mooncake-sidecar-7" {
			t.Errorf("with %v: %s", unset, got)
		}
	}
	base := t.TempDir()
	dir := filepath.Join(base, "a", "b")
	for range 2 {
		if err := EnsureRuntimeDir(dir); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("made with mode %v, %v", info.Mode(), err)
	}
	for _, mode := range []fs.FileMode{0o701, 0o710, 0o770, 0o755} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		if err := EnsureRuntimeDir(dir); !errors.Is(err, ErrRuntimeDir) {
			t.Errorf("mode %o: %v, want ErrRuntimeDir", mode, err)
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(base, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if err := EnsureRuntimeDir(link); !errors.Is(err, ErrRuntimeDir) {
		t.Errorf("a symbolic link: %v, want ErrRuntimeDir", err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if err := EnsureRuntimeDir(dir); !errors.Is(err, ErrRuntimeDir) {
			t.Errorf("another user's: %v, want ErrRuntimeDir", err)
		}
	}
}

func FuzzParseSize(f *testing.F) {
	f.Add("4GiB")
	f.Add("1.5TB")
	f.Fuzz(func(t *testing.T, text string) {
		size, err := ParseSize(text)
		if err != nil {
			return
		}
		if back, err := ParseSize(size.String()); err != nil || back != size {
			t.Errorf("%q is %d, written %s, read back as %d, %v", text, size, size, back, err)
		}
	})
}

func FuzzParseFile(f *testing.F) {
	f.Add([]byte("runtime_dir: /x\nlookupd:\n  store_bytes: 1GiB\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := parseFile(data); err == nil && c == nil {
			t.Error("neither a file nor an error")
		}
	})
}
