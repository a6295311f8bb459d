package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"
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
		"small machine":  {fstest.MapFS{"proc/meminfo": text("MemTotal: 524288 kB\n")}, minDefaultStore},
		"tiny container": {fstest.MapFS{"proc/meminfo": machine, "sys/fs/cgroup/memory.max": text("268435456\n")}, 64 << 20},
		"no room at all": {fstest.MapFS{"proc/meminfo": machine, "sys/fs/cgroup/memory.max": text("4194304\n")}, MinStoreBytes},
		"rounded":        {fstest.MapFS{"proc/meminfo": text("MemTotal: 2000000 kB\n")}, 448 << 20},
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
	c, settings, err := LoadLookupd(source(t, map[string]string{"store-bytes": "3GiB", "autostarted": "true"}, env, text))
	if err != nil {
		t.Fatal(err)
	}
	want := LookupdConfig{
		Common:     Common{RuntimeDir: "/env", LogLevel: "info", LogFormat: "auto", Linger: time.Minute, Autostarted: true},
		StoreBytes: 3 << 30, NUMA: "auto", HugePages: "auto", EvictionPolicy: "hazard", LeaseTTL: 10 * time.Second,
		KVEvents: KVEvents{Topic: DefaultEventsTopic, BufferSteps: 10_000, HWM: 10_000},
		Mooncake: Mooncake{Store: "embedded", StorePython: "python3", Write: "through", Reset: "node", Replicas: 1, Lease: 10 * time.Second},
	}
	if *c != want {
		t.Errorf("got %+v, want %+v", *c, want)
	}
	origins := map[string]string{}
	for _, s := range settings {
		origins[s.Key] = string(s.Origin) + " " + filepath.Base(s.Where) + " " + s.Value
	}
	for key, want := range map[string]string{
		"runtime_dir": "environment MOONCAKE_SIDECAR_RUNTIME_DIR /env", "linger": "file config.yaml:2 1m", "lease_ttl": "file config.yaml:5 10s",
		"store_bytes": "flag --store-bytes 3GiB", "log_level": "default . info", "autostarted": "flag --autostarted true",
	} {
		if origins[key] != want {
			t.Errorf("%s comes from %q, want %q", key, origins[key], want)
		}
	}
	w, _, err := LoadWorker(source(t, nil, env, text))
	if err != nil || w.Device != "cuda-1" || w.DeviceKind() != "cuda" || w.RuntimeDir != "/env" || w.Verify {
		t.Errorf("got %+v, %v", w, err)
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	_, _, err := LoadLookupd(source(t,
		map[string]string{"store-bytes": "lots", "linger": "soon"},
		map[string]string{"MOONCAKE_SIDECAR_LEASE_TTL": "1ms", "MOONCAKE_SIDECAR_EVICTION_POLICY": "mru", "MOONCAKE_SIDECAR_RUNTIME_DIR": "here"},
		"log_level: loud\nlog_format: xml\n"))
	if !errors.Is(err, ErrValue) {
		t.Fatalf("got %v, want ErrValue", err)
	}
	for _, want := range []string{"--store-bytes", "--linger", "lease_ttl", "eviction_policy", "runtime_dir", "log_level", "log_format"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	_, _, err = LoadWorker(source(t, map[string]string{"device": "gpu0", "queue-jobs": "-1", "verify": "maybe", "load-workers": "x", "batch-bytes": "1"}, nil, ""))
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
		if _, _, err := LoadLookupd(source(t, nil, nil, text)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, _, err := LoadLookupd(source(t, nil, nil, "runtime_dirr: /x\n")); err == nil || !strings.Contains(err.Error(), "runtime_dirr") {
		t.Errorf("the unknown key is not named: %v", err)
	}
	src := source(t, nil, nil, "")
	src.File = "/nonexistent/config.yaml"
	if _, _, err := LoadWorker(src); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want ErrNotExist", err)
	}
	src.File = filepath.Join(t.TempDir(), "big")
	if err := os.WriteFile(src.File, []byte(strings.Repeat("#", maxFileBytes+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := LoadWorker(src); !errors.Is(err, ErrValue) {
		t.Errorf("a huge file: %v", err)
	}
	if _, _, err := LoadWorker(source(t, nil, nil, "# nothing\n")); err != nil {
		t.Errorf("an empty file: %v", err)
	}
}

// Every field of the structs is a setting, and nothing else is.
func TestFieldsCoverTheStructs(t *testing.T) {
	var lookupd LookupdConfig
	var worker WorkerConfig
	var count func(reflect.Type) int
	count = func(typ reflect.Type) (n int) {
		for i := range typ.NumField() {
			if f := typ.Field(i); f.Anonymous {
				n += count(f.Type)
			} else {
				n++
			}
		}
		return n
	}
	for name, c := range map[string]struct {
		typ    reflect.Type
		fields []Field
	}{"lookupd": {reflect.TypeFor[LookupdConfig](), lookupd.Fields()}, "worker": {reflect.TypeFor[WorkerConfig](), worker.Fields()}} {
		if want := count(c.typ); len(c.fields) != want {
			t.Errorf("%s: %d settings for %d fields", name, len(c.fields), want)
		}
		keys := map[string]bool{}
		for _, f := range c.fields {
			if keys[f.Key] || f.Key == "" || f.Help == "" || f.Type == "" || f.Default == "" || f.Set == nil || f.Get == nil {
				t.Errorf("%s: setting %q is there twice, or not whole", name, f.Key)
			}
			keys[f.Key] = true
		}
	}
}

// What a setting says of itself can be set again, to the same effect.
func TestValuesRoundTrip(t *testing.T) {
	lookupd, worker := &LookupdConfig{}, &WorkerConfig{}
	lookupd.SetDefaults(fstest.MapFS{})
	worker.SetDefaults()
	lookupd.Linger, lookupd.StoreBytes, worker.Verify = 90*time.Minute, 5<<20, true
	for _, f := range append(lookupd.Fields(), worker.Fields()...) {
		before := f.Get()
		if err := f.Set(before); err != nil || f.Get() != before {
			t.Errorf("%s: %q is set again as %q, %v", f.Key, before, f.Get(), err)
		}
	}
	for d, want := range map[time.Duration]string{15 * time.Minute: "15m", 2 * time.Hour: "2h", 90 * time.Minute: "1h30m", 30 * time.Second: "30s", 10 * time.Minute: "10m", 0: "0s"} {
		if got := durationText(d); got != want {
			t.Errorf("%v is written %s, want %s", d, got, want)
		}
	}
}

func TestUnknownKeysAreNamedWithTheNearest(t *testing.T) {
	for text, want := range map[string]string{
		"linegr: 1m\n":                         `line 1: bad value: unknown key "linegr"; did you mean "linger"?`,
		"lookupd:\n  store_byte: 1GiB\n":       `line 2: bad value: unknown key "store_byte" in section lookupd; did you mean "store_bytes"?`,
		"store_bytes: 1GiB\n":                  `it belongs into section lookupd`,
		"worker:\n  log_level: info\n":         `it belongs to the top of the file`,
		"qqqqqqqqqqqqqq: 1\n":                  `known are lookupd, worker, conductor, runtime_dir`,
		"lookupd: 5\n":                         `want keys and values in section lookupd`,
		"worker:\n  queue_jobs: {a: 1}\n":      `queue_jobs: want a single value`,
		"? [a, b]\n: 1\n":                      `unknown key`,
		"linger: &a 1m\nlog_level: *a\n":       `log_level: want a single value`,
		"worker:\n  <<: {device: host-0}\n":    `unknown key "<<"`,
		"worker:\n  http_listen: 0.0.0.0:80\n": `can be reached from other machines`,
	} {
		name := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := CheckFile(name, fstest.MapFS{}); !errors.Is(err, ErrValue) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// A file is checked whole, whichever daemon's section has the faults.
func TestCheckFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "config.yaml")
	write := func(text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("log_level: loud\nlingr: 1m\nlookupd:\n  store_bytes: many\n  lease_ttl: 1ms\n  numa: maybe\nworker:\n  device: gpu\n  queue_jobs: -4\n")
	err := CheckFile(name, fstest.MapFS{})
	for _, want := range []string{"log_level", "lingr", "store_bytes", "lease_ttl", "numa", "device", "queue_jobs"} {
		if err == nil || strings.Count(err.Error(), want) != 1 {
			t.Errorf("%q is not once in: %v", want, err)
		}
	}
	t.Setenv("MOONCAKE_SIDECAR_DEVICE", "nonsense") // plays no part
	write("lookupd:\n  store_bytes: 1GiB\n  http_listen: localhost:9790\nworker:\n")
	if err := CheckFile(name, fstest.MapFS{}); err != nil {
		t.Error(err)
	}
}

func TestHTTPListen(t *testing.T) {
	for address, ok := range map[string]bool{
		"": true, "127.0.0.1:9790": true, "[::1]:9790": true, "localhost:0": true, "127.9.9.9:1": true,
		"0.0.0.0:9790": false, ":9790": false, "example.com:80": false, "9790": false, "127.0.0.1:http": false, "127.0.0.1:99999": false,
	} {
		h := HTTP{HTTPListen: address}
		if faults := h.faults(); (len(faults) == 0) != ok {
			t.Errorf("%q: %v", address, faults)
		}
	}
	remote := HTTP{HTTPListen: "0.0.0.0:9790", HTTPAllowRemote: true}
	if faults := remote.faults(); len(faults) != 0 {
		t.Errorf("allowed: %v", faults)
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
	for _, mode := range []fs.FileMode{0o701, 0o720, 0o770, 0o755} {
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
		values, err := parseFile(data)
		known := knownKeys()
		for _, v := range values {
			if !slices.Contains(known[v.section], v.key) || v.line < 1 {
				t.Errorf("a value of nothing known: %+v (%v)", v, err)
			}
		}
	})
}
