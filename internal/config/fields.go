package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/evict"
)

// EnvPrefix begins the name of every environment variable.
const EnvPrefix = "MOONCAKE_SIDECAR_"

// Sections of the configuration file. What all daemons share has none.
const (
	SectionCommon  = ""
	SectionLookupd = "lookupd"
	SectionWorker  = "worker"
)

// Field is one setting, as the file, flags, the environment and the reference
// know it.
type Field struct {
	// Section of the file that it belongs to.
	Section string
	// Key is its name in the file.
	Key string
	// Help says what it is. A word in backquotes names the value.
	Help string
	// Type says how the value is written: text, size, time, number, true/false.
	Type string
	// Default is what is used when nothing is said, in words where it depends.
	Default string
	// Bool: a flag needs no value.
	Bool bool
	// NotInFile: it is a flag and a variable only.
	NotInFile bool
	// Reloads: a running daemon takes a new value when it reads the file again.
	Reloads bool
	// Set parses a value into the configuration; Get writes it so that Set can
	// read it.
	Set func(text string) error
	Get func() string
}

// Flag returns the name of the setting's flag, without dashes in front.
func (f *Field) Flag() string { return strings.ReplaceAll(f.Key, "_", "-") }

// Env returns the name of the setting's environment variable.
func (f *Field) Env() string { return EnvPrefix + strings.ToUpper(f.Key) }

// Usage is the help of the setting's flag.
func (f *Field) Usage() string {
	if f.Default == "" {
		return f.Help
	}
	return f.Help + " (default: " + f.Default + ")"
}

// named is a field still without its kind of value.
func named(section, key, def, help string) Field {
	return Field{Section: section, Key: key, Default: def, Help: help}
}

func (f Field) text(to *string) Field {
	f.Type = "text"
	f.Set = func(text string) error { *to = text; return nil }
	f.Get = func() string { return *to }
	return f
}

func (f Field) bool(to *bool) Field {
	f.Type, f.Bool = "true/false", true
	f.Set = func(text string) (err error) {
		if *to, err = strconv.ParseBool(text); err != nil {
			return fmt.Errorf("%w: %q; want true or false", ErrValue, text)
		}
		return nil
	}
	f.Get = func() string { return strconv.FormatBool(*to) }
	return f
}

func (f Field) number(to *int) Field {
	f.Type = "number"
	f.Set = func(text string) (err error) {
		if *to, err = strconv.Atoi(text); err != nil {
			return fmt.Errorf("%w: %q; want a whole number", ErrValue, text)
		}
		return nil
	}
	f.Get = func() string { return strconv.Itoa(*to) }
	return f
}

func (f Field) duration(to *time.Duration) Field {
	f.Type = "time"
	f.Set = func(text string) (err error) {
		if *to, err = time.ParseDuration(text); err != nil {
			return fmt.Errorf("%w: %q; want a time like 30s or 15m", ErrValue, text)
		}
		return nil
	}
	f.Get = func() string { return durationText(*to) }
	return f
}

func (f Field) size(to *Size) Field {
	f.Type = "size"
	f.Set = func(text string) (err error) {
		*to, err = ParseSize(text)
		return err
	}
	f.Get = func() string { return to.String() }
	return f
}

// durationText writes 15m rather than 15m0s.
func durationText(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func (c *Common) fields() []Field {
	level := named(SectionCommon, "log_level", "info", "debug, info, warn or error").text(&c.LogLevel)
	level.Reloads = true
	autostarted := named(SectionCommon, "autostarted", "false", "a shim started this daemon: end after --linger, and let the shim kill it").bool(&c.Autostarted)
	autostarted.NotInFile = true
	return []Field{
		named(SectionCommon, "runtime_dir", "$XDG_RUNTIME_DIR/mooncake-sidecar, else /tmp/mooncake-sidecar-<uid>", "`directory` of the sockets").text(&c.RuntimeDir),
		level,
		named(SectionCommon, "log_format", "auto", "text, json or journal; auto is text on a terminal, journal for systemd's, else json").text(&c.LogFormat),
		named(SectionCommon, "group_access", "false", "let members of the daemon's group use its sockets, not its own user alone").bool(&c.GroupAccess),
		named(SectionCommon, "linger", "15m", "`time` an autostarted daemon stays after its last session").duration(&c.Linger),
		autostarted,
	}
}

func (c *HTTP) fields(section, port string) []Field {
	return []Field{
		named(section, "http_listen", "none, units use 127.0.0.1:"+port,
			"`address` for health and metrics over TCP, beside the socket in the runtime directory; autostarted daemons listen on none").text(&c.HTTPListen),
		named(section, "http_allow_remote", "false", "let --http-listen be an address that other machines reach; there is no password on it").bool(&c.HTTPAllowRemote),
	}
}

// Fields lists the settings of mooncake-lookupd.
func (c *LookupdConfig) Fields() []Field {
	fields := append(c.Common.fields(),
		named(SectionLookupd, "store_bytes", "a quarter of the memory", "`size` of the shared-memory store, like 16GiB").size(&c.StoreBytes),
		named(SectionLookupd, "numa", NUMAAuto, "auto divides a new store's memory between the machine's NUMA nodes, off leaves it where the kernel puts it").text(&c.NUMA),
		named(SectionLookupd, "huge_pages", HugePagesAuto, "auto asks for huge pages for the store's memory, off leaves it on small ones").text(&c.HugePages),
		named(SectionLookupd, "eviction_policy", evict.Default, "`policy` by which chunks go when memory is needed: "+strings.Join(evict.Names(), ", ")).text(&c.EvictionPolicy),
		named(SectionLookupd, "lease_ttl", "30s", "`time` a lookup keeps its hit from eviction").duration(&c.LeaseTTL),
		named(SectionLookupd, "disk_dir", "none", "`directory` on a local disk for chunks that memory has no room for; it is made if its parent is there").text(&c.DiskDir),
		named(SectionLookupd, "disk_bytes", "four times store_bytes", "`size` of the file in --disk-dir").size(&c.DiskBytes),
		named(SectionLookupd, "disk_write_bytes_per_s", "256MiB", "`size` of what is written to --disk-dir in a second, at most; chunks beyond are dropped").size(&c.DiskWriteBytesPerS),
		named(SectionLookupd, "grpc_no_reflection", "false", "do not let the gRPC services on the socket describe themselves to clients like grpcurl").bool(&c.GRPCNoReflection),
	)
	fields = append(append(fields, c.Mooncake.fields()...), c.KVEvents.fields()...)
	return append(fields, c.HTTP.fields(SectionLookupd, "9790")...)
}

// Fields lists the settings of mooncake-worker.
func (c *WorkerConfig) Fields() []Field {
	fields := append(c.Common.fields(),
		named(SectionWorker, "device", "host-0", "`device` of the engine rank: host-0, cuda-0").text(&c.Device),
		named(SectionWorker, "affinity", AffinityAuto, "auto keeps the worker's threads to the cores next to its GPU, off leaves them where they are").text(&c.Affinity),
		named(SectionWorker, "verify", "false, the engine decides", "compare the checksum of every loaded shard").bool(&c.Verify),
		named(SectionWorker, "queue_jobs", "1024", "`jobs` that may wait, loads and stores each, by engine rank").number(&c.QueueJobs),
		named(SectionWorker, "load_workers", "32", "`loads` under way at a time, by engine rank, and as many short ones; those that wait for a disk are not counted").number(&c.LoadWorkers),
		named(SectionWorker, "store_pace", "100", "`percent` of the time for which an engine rank's stores copy at most; batches of stores shrink with it, down to 4 MiB").number(&c.StorePace),
		named(SectionWorker, "batch_bytes", "64MiB", "`size` of what is copied in one go").size(&c.BatchBytes),
	)
	return append(fields, c.HTTP.fields(SectionWorker, "9791 and up")...)
}
