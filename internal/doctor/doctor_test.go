package doctor

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"
)

const gib = 1 << 30

func text(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }

// machine is one where nothing is wrong.
func machine() (*System, *Settings, fstest.MapFS, map[string]string) {
	files := fstest.MapFS{
		"proc/meminfo":                      text("MemTotal:  67108864 kB\nMemAvailable: 50331648 kB\n"),
		"proc/self/cgroup":                  text("0::/\n"),
		"proc/self/limits":                  text("Limit  Soft Limit  Hard Limit  Units\nMax locked memory         unlimited            unlimited            bytes\n"),
		"proc/self/status":                  text("Name:\tx\nUmask:\t0022\n"),
		"proc/sys/kernel/yama/ptrace_scope": text("0\n"),
		"sys/kernel/mm/transparent_hugepage/shmem_enabled": text("always within_size [advise] never deny force\n"),
		"run/mc/lookupd.sock":                              text(""),
		"run/mc/lookupd.sock.lock":                         text(""),
	}
	env := map[string]string{}
	return &System{
		Root: files, Env: func(name string) (string, bool) { v, is := env[name]; return v, is }, UID: 7,
		Stat:       func(string) (Owner, error) { return Owner{UID: 7, Mode: fs.ModeDir | 0o700}, nil },
		SpaceBytes: func(string) (uint64, uint64, error) { return 32 * gib, 31 * gib, nil },
		InMemory:   func(string) (bool, error) { return false, nil },
		Writable:   func(string) error { return nil },
		Served:     func(string) bool { return true },
		Daemons: func(context.Context) []Daemon {
			return []Daemon{{Name: "mooncake-lookupd", Version: "v1.2.3", Socket: "/run/mc/lookupd.sock", PID: 5, Ready: true}}
		},
		Cluster: func(context.Context) Cluster {
			return Cluster{File: "/etc/mooncake.json", Python: "/venv/bin/python", Master: "10.0.0.1:50051", Metadata: "http://10.0.0.1:8080/metadata", Protocol: "tcp", Ready: true, Versions: map[string]string{"mooncake": "0.3.13"}}
		},
		Python: func(context.Context) (Python, error) {
			return Python{VLLM: "0.32.1", Sidecar: "1.2.3", HashAlgorithm: "sha256"}, nil
		},
	}, &Settings{RuntimeDir: "/run/mc", StoreBytes: 16 * gib, Version: "v1.2.3", PythonPath: "/venv/bin/python"}, files, env
}

func TestNothingIsWrong(t *testing.T) {
	s, c, _, _ := machine()
	findings := Run(t.Context(), s, c)
	if len(findings) != len(checks()) || ExitCode(findings) != 0 {
		t.Errorf("%d findings of %d checks, exit code %d", len(findings), len(checks()), ExitCode(findings))
	}
	for _, f := range findings {
		if f.Severity != OK || f.Check == "" || f.What == "" {
			t.Errorf("found %+v", f)
		}
	}
}

// world is the machine at hand to a case.
type world struct {
	s     *System
	c     *Settings
	files fstest.MapFS
	env   map[string]string
}

// Every finding, provoked.
func TestFindings(t *testing.T) {
	stat := func(o Owner, err error) func(*world) {
		return func(w *world) { w.s.Stat = func(string) (Owner, error) { return o, err } }
	}
	file := func(name, content string) func(*world) { return func(w *world) { w.files[name] = text(content) } }
	python := func(p Python, err error) func(*world) {
		return func(w *world) { w.s.Python = func(context.Context) (Python, error) { return p, err } }
	}
	space := func(total, free uint64, err error) func(*world) {
		return func(w *world) { w.s.SpaceBytes = func(string) (uint64, uint64, error) { return total, free, err } }
	}
	missing := func(string) (Owner, error) { return Owner{}, fs.ErrNotExist }
	is := func(mode fs.FileMode) func(string) (Owner, error) {
		return func(string) (Owner, error) { return Owner{UID: 7, Mode: mode}, nil }
	}
	running := func(d ...Daemon) func(*world) {
		return func(w *world) { w.s.Daemons = func(context.Context) []Daemon { return d } }
	}
	cluster := func(change func(*Cluster)) func(*world) {
		return func(w *world) {
			good := w.s.Cluster
			w.s.Cluster = func(ctx context.Context) Cluster {
				found := good(ctx)
				change(&found)
				return found
			}
		}
	}
	for name, c := range map[string]struct {
		provoke  func(*world)
		check    string
		severity Severity
		says     string
	}{
		"no cluster":             {func(w *world) { w.s.Cluster = nil }, "mooncake", OK, "no Mooncake cluster"},
		"cluster":                {cluster(func(*Cluster) {}), "mooncake", OK, "by tcp, with the side process of /venv/bin/python (mooncake 0.3.13)"},
		"cluster by library":     {cluster(func(c *Cluster) { c.Library = "/l.so" }), "mooncake", OK, "with the library /l.so"},
		"a request's share":      {cluster(func(*Cluster) {}), "mooncake", OK, "at most 4GiB from the cluster"},
		"no such library":        {cluster(func(c *Cluster) { c.Library, c.Ready, c.Reason = "/l.so", false, "no mooncake_store_remove" }), "mooncake", Failure, "by the library: no mooncake_store_remove"},
		"cluster's file":         {cluster(func(c *Cluster) { c.ConfigErr = errors.New("protocol: bad") }), "mooncake", Failure, "protocol: bad"},
		"field nobody knows":     {cluster(func(c *Cluster) { c.Notes = []string{"field devise"} }), "mooncake", Info, "devise"},
		"master silent":          {cluster(func(c *Cluster) { c.MasterErr = errors.New("refused") }), "mooncake", Failure, "master does not answer: refused"},
		"metadata silent":        {cluster(func(c *Cluster) { c.MetadataErr = errors.New("refused") }), "mooncake", Failure, "metadata server does not answer"},
		"versions do not fit":    {cluster(func(c *Cluster) { c.Ready, c.Reason = false, "RPC_FAIL (-900)" }), "mooncake", Failure, "RPC_FAIL"},
		"events":                 {cluster(func(c *Cluster) { c.Events, c.Linked, c.Told, c.Named = "tcp://m:1", true, true, true }), "mooncake", OK, "KV events tell"},
		"no publisher":           {cluster(func(c *Cluster) { c.Events = "tcp://m:1" }), "mooncake", Warning, "nobody publishes"},
		"publisher is silent":    {cluster(func(c *Cluster) { c.Events, c.Linked = "tcp://m:1", true }), "mooncake", Warning, "tells nothing"},
		"events without keys":    {cluster(func(c *Cluster) { c.Events, c.Linked, c.Told = "tcp://m:1", true, true }), "mooncake", Warning, "name no objects"},
		"events can't be tried":  {cluster(func(c *Cluster) { c.Events, c.EventsErr = "tcp://m:1", errors.New("bad") }), "mooncake", Failure, "can't be followed: bad"},
		"no storage node":        {cluster(func(c *Cluster) { c.Note = "no room in the cluster" }), "mooncake", Warning, "no room"},
		"lends more than it has": {cluster(func(c *Cluster) { c.LentBytes = 60 * gib }), "mooncake", Warning, "more than the memory"},
		"no meminfo":             {func(w *world) { delete(w.files, "proc/meminfo") }, "memory", Warning, "can't be read"},
		"store beyond machine":   {func(w *world) { w.c.StoreBytes = 65 * gib }, "memory", Failure, "does not fit a machine of 64GiB"},
		"store beyond free":      {func(w *world) { w.c.StoreBytes = 50 * gib }, "memory", Warning, "48GiB that are available"},
		"no disk dir":            {func(w *world) { w.c.DiskDir = "/x/kv"; w.s.Stat = missing }, "disk", Failure, "its parent"},
		"disk of another":        {func(w *world) { w.c.DiskDir = "/x/kv"; w.s.UID = 8 }, "disk", Failure, "belongs to user 7"},
		"disk dir open":          {func(w *world) { w.c.DiskDir = "/x/kv"; w.s.Stat = is(fs.ModeDir | 0o755) }, "disk", Failure, "mode 0755"},
		"disk file":              {func(w *world) { w.c.DiskDir = "/x/kv"; w.s.Stat = is(0o644) }, "disk", Failure, "no directory"},
		"disk not writable":      {func(w *world) { w.c.DiskDir = "/x/kv"; w.s.Writable = func(string) error { return fs.ErrPermission } }, "disk", Failure, "can't be written"},
		"disk in memory":         {func(w *world) { w.c.DiskDir = "/x/kv"; w.s.InMemory = func(string) (bool, error) { return true, nil } }, "disk", Failure, "in memory"},
		"disk too full":          {func(w *world) { w.c.DiskDir, w.c.DiskBytes = "/x/kv", 100*gib }, "disk", Warning, "100GiB"},
		"disk gone": {func(w *world) {
			w.c.DiskDir = "/x/kv"
			w.s.InMemory = func(string) (bool, error) { return false, errors.New("stale handle") }
		}, "disk", Failure, "stale handle"},
		"disk":      {func(w *world) { w.c.DiskDir, w.c.DiskBytes = "/x/kv", gib }, "disk", OK, "1GiB"},
		"small shm": {space(64<<20, 60<<20, nil), "shm", Warning, "only 64MiB large"},
		"full shm":  {space(32*gib, gib, nil), "shm", Warning, "1GiB of 32GiB free"},
		"no shm":    {space(0, 0, errors.New("gone")), "shm", Warning, "gone"},
		"killed by its group": {func(w *world) {
			file("proc/self/cgroup", "0::/a/b\n")(w)
			file("sys/fs/cgroup/a/memory.max", "8589934592\n")(w)
		}, "cgroup_memory", Failure, "may use 8GiB"},
		"tight group":         {file("sys/fs/cgroup/memory.max", "21474836480\n"), "cgroup_memory", Warning, "may use 20GiB"},
		"roomy group":         {file("sys/fs/cgroup/memory.max", "68719476736\n"), "cgroup_memory", OK, "may use 64GiB"},
		"group without limit": {file("sys/fs/cgroup/memory.max", "max\n"), "cgroup_memory", OK, "no memory limit"},
		"docker":              {file(".dockerenv", ""), "cgroup", Warning, "this is a container"},
		"podman":              {file("run/.containerenv", ""), "cgroup", Warning, "this is a container"},
		"kubernetes":          {file("proc/self/cgroup", "0::/kubepods.slice/pod1\n"), "cgroup", Warning, "this is a container"},
		"service":             {file("proc/self/cgroup", "0::/system.slice/vllm.service\n"), "cgroup", Warning, "vllm.service"},
		"session":             {file("proc/self/cgroup", "0::/user.slice/session-3.scope\n"), "cgroup", Info, "session-3.scope"},
		"memlock":             {file("proc/self/limits", "Max locked memory   8388608   8388608   bytes\n"), "memlock", Info, "8388608 bytes"},
		"no limits":           {func(w *world) { delete(w.files, "proc/self/limits") }, "memlock", Info, "can't be read"},
		"no huge pages":       {file("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always advise [never]\n"), "hugepages", Info, "never"},
		"another's directory": {stat(Owner{UID: 8, Mode: fs.ModeDir | 0o700}, nil), "runtime_dir", Failure, "belongs to user 8, you are 7"},
		"another's group":     {stat(Owner{UID: 8, Mode: fs.ModeDir | 0o750}, nil), "runtime_dir", Failure, "belongs to user 8, you are 7"},
		"root's group":        {stat(Owner{Mode: fs.ModeDir | 0o750}, nil), "runtime_dir", Info, "belongs to user 0"},
		"open directory":      {stat(Owner{UID: 7, Mode: fs.ModeDir | 0o755}, nil), "runtime_dir", Failure, "0755"},
		"group writes":        {stat(Owner{UID: 7, Mode: fs.ModeDir | 0o770}, nil), "runtime_dir", Failure, "0770"},
		"group enters":        {stat(Owner{UID: 7, Mode: fs.ModeDir | 0o750}, nil), "runtime_dir", OK, "your group may use it"},
		"another's for groups": {func(w *world) {
			w.c.RuntimeDir = systemDir
			stat(Owner{UID: 8, Mode: fs.ModeDir | 0o750}, nil)(w)
		}, "runtime_dir", Info, "group_access"},
		"a file":               {stat(Owner{UID: 7, Mode: 0o700}, nil), "runtime_dir", Failure, "no directory"},
		"a link":               {stat(Owner{UID: 7, Mode: fs.ModeSymlink | 0o777}, nil), "runtime_dir", Failure, "no directory"},
		"no directory yet":     {stat(Owner{}, fs.ErrNotExist), "runtime_dir", OK, "not there yet"},
		"unreadable directory": {stat(Owner{}, fs.ErrPermission), "runtime_dir", Failure, "permission"},
		"long directory":       {func(w *world) { w.c.RuntimeDir = "/" + strings.Repeat("x", 90) }, "runtime_dir", Failure, "91 characters"},
		"stale socket":         {func(w *world) { w.s.Served = func(string) bool { return false } }, "sockets", Warning, "nobody serves"},
		"no daemon":            {running(), "daemons", Info, "no daemon runs"},
		"old daemon":           {running(Daemon{Name: "mooncake-worker", Version: "v1.0.0", Socket: "/s", PID: 3, Ready: true}), "daemons", Warning, "v1.0.0 (pid 3) runs, this program is v1.2.3"},
		"worker without store": {running(Daemon{Name: "mooncake-worker", Version: "v1.2.3", Socket: "/s"}), "daemons", Warning, "has no store"},
		"umask":                {file("proc/self/status", "Umask:\t0277\n"), "umask", Failure, "0277"},
		"unreadable umask":     {file("proc/self/status", "Name: x\n"), "umask", Info, "can't be read"},
		"ptrace":               {file("proc/sys/kernel/yama/ptrace_scope", "1\n"), "ptrace", Info, "scope 1"},
		"no yama":              {func(w *world) { delete(w.files, "proc/sys/kernel/yama/ptrace_scope") }, "ptrace", OK, "not restricted"},
		"expandable segments":  {func(w *world) { w.env["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:128, expandable_segments: True" }, "expandable_segments", Warning, "expandable segments are on"},
		"expandable, new name": {func(w *world) { w.env["PYTORCH_ALLOC_CONF"] = "expandable_segments:True" }, "expandable_segments", Warning, "are on"},
		"not expandable":       {func(w *world) { w.env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:False" }, "expandable_segments", OK, "off"},
		"no interpreter named": {func(w *world) { w.s.Python = nil }, "vllm", Info, "not looked for"},
		"broken interpreter":   {python(Python{}, errors.New("exec format error")), "vllm", Failure, "exec format error"},
		"no vllm":              {python(Python{Sidecar: "1.2.3"}, nil), "vllm", Failure, "has no vLLM"},
		"old vllm":             {python(Python{VLLM: "0.31.0", Sidecar: "1.2.3"}, nil), "vllm", Warning, "vLLM 0.31.0"},
		"much newer vllm":      {python(Python{VLLM: "0.320.0", Sidecar: "1.2.3"}, nil), "vllm", Warning, "vLLM 0.320.0"},
		"no shim":              {python(Python{VLLM: "0.32.0"}, nil), "vllm", Failure, "mooncake_sidecar is not installed"},
		"another shim":         {python(Python{VLLM: "0.32.0", Sidecar: "1.2.2"}, nil), "vllm", Warning, "mooncake_sidecar 1.2.2 with daemons v1.2.3"},
		"random hashes":        {func(w *world) { w.c.HashAlgorithm = "xxhash_cbor" }, "hash", Warning, "without PYTHONHASHSEED"},
		"seeded xxhash":        {func(w *world) { w.c.HashAlgorithm, w.env["PYTHONHASHSEED"] = "xxhash", "0" }, "hash", Info, "PYTHONHASHSEED=0"},
		"seeded sha256":        {func(w *world) { w.env["PYTHONHASHSEED"] = "42" }, "hash", Info, "PYTHONHASHSEED=42"},
		"unknown hash":         {func(w *world) { w.s.Python = nil }, "hash", Info, "not known"},
	} {
		t.Run(name, func(t *testing.T) {
			s, settings, files, env := machine()
			c.provoke(&world{s, settings, files, env})
			for _, f := range Run(t.Context(), s, settings) {
				if f.Check != c.check || f.Severity != c.severity || !strings.Contains(f.What, c.says) {
					continue
				}
				if f.Severity != OK && f.Severity != Info && (f.Do == "" || f.Where == "") {
					t.Errorf("it says neither where nor what to do: %+v", f)
				}
				return
			}
			t.Errorf("not found: %s %s %q in %+v", c.check, c.severity, c.says, Run(t.Context(), s, settings))
		})
	}
}

func TestExitCode(t *testing.T) {
	for want, findings := range map[int][]Finding{
		0: {{Severity: OK}, {Severity: Info}}, 1: {{Severity: Warning}, {Severity: OK}}, 2: {{Severity: Failure}, {Severity: Warning}},
	} {
		if got := ExitCode(findings); got != want {
			t.Errorf("%v: %d, want %d", findings, got, want)
		}
	}
}

func TestSameRelease(t *testing.T) {
	for _, c := range []struct {
		wheel, program string
		want           bool
	}{
		{"1.2.3", "v1.2.3", true}, {"1.2.3", "v1.2.3-5-gabc-dirty", true}, {"1.2.3", "v1.2.4", false}, {"1.2.3", "dev", true}, {"1.2.3", "0e5497e-dirty", true}, {"1.2.3+cpu", "1.2.3", true},
	} {
		if got := sameRelease(c.wheel, c.program); got != c.want {
			t.Errorf("%s and %s: %v", c.wheel, c.program, got)
		}
	}
}
