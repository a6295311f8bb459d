package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// EnvPrefix begins the name of every environment variable.
const EnvPrefix = "MOONCAKE_SIDECAR_"

// Field is one setting, as flags and the environment know it.
type Field struct {
	// Key is its name in the file.
	Key string
	// Help says what it is, with the unit and the default.
	Help string
	// Bool: a flag needs no value.
	Bool bool
	// Set parses a value into the configuration.
	Set func(text string) error
}

// Flag returns the name of the setting's flag, without dashes in front.
func (f *Field) Flag() string { return strings.ReplaceAll(f.Key, "_", "-") }

// Env returns the name of the setting's environment variable.
func (f *Field) Env() string { return EnvPrefix + strings.ToUpper(f.Key) }

func textField(key, help string, to *string) Field {
	return Field{Key: key, Help: help, Set: func(text string) error { *to = text; return nil }}
}

func boolField(key, help string, to *bool) Field {
	return Field{Key: key, Help: help, Bool: true, Set: func(text string) (err error) {
		if *to, err = strconv.ParseBool(text); err != nil {
			return fmt.Errorf("%w: %q; want true or false", ErrValue, text)
		}
		return nil
	}}
}

func intField(key, help string, to *int) Field {
	return Field{Key: key, Help: help, Set: func(text string) (err error) {
		if *to, err = strconv.Atoi(text); err != nil {
			return fmt.Errorf("%w: %q; want a whole number", ErrValue, text)
		}
		return nil
	}}
}

func durationField(key, help string, to *time.Duration) Field {
	return Field{Key: key, Help: help, Set: func(text string) (err error) {
		if *to, err = time.ParseDuration(text); err != nil {
			return fmt.Errorf("%w: %q; want a time like 30s or 15m", ErrValue, text)
		}
		return nil
	}}
}

func sizeField(key, help string, to *Size) Field {
	return Field{Key: key, Help: help, Set: func(text string) (err error) {
		*to, err = ParseSize(text)
		return err
	}}
}

func (c *Common) fields() []Field {
	return []Field{
		textField("runtime_dir", "`directory` of the sockets (default: $XDG_RUNTIME_DIR/mooncake-sidecar, else /tmp/mooncake-sidecar-<uid>)", &c.RuntimeDir),
		textField("log_level", "debug, info, warn or error (default: info)", &c.LogLevel),
		textField("log_format", "text or json (default: text)", &c.LogFormat),
		durationField("linger", "`time` an autostarted daemon stays after its last session (default: 15m)", &c.Linger),
		boolField("autostarted", "a shim started this daemon: end after --linger, and let the shim kill it", &c.Autostarted),
	}
}

// Fields lists the settings of mooncake-lookupd.
func (c *LookupdConfig) Fields() []Field {
	return append(c.Common.fields(),
		sizeField("store_bytes", "`size` of the shared-memory store, like 16GiB (default: a quarter of the memory)", &c.StoreBytes),
		durationField("lease_ttl", "`time` a lookup keeps its hit from eviction (default: 30s)", &c.LeaseTTL),
	)
}

// Fields lists the settings of mooncake-worker.
func (c *WorkerConfig) Fields() []Field {
	return append(c.Common.fields(),
		textField("device", "`device` of the engine rank: host-0, cuda-0 (default: host-0)", &c.Device),
		boolField("verify", "compare the checksum of every loaded shard (default: the engine decides)", &c.Verify),
		intField("queue_jobs", "`jobs` that may wait, loads and stores each, by engine rank (default: 1024)", &c.QueueJobs),
		intField("load_workers", "`loads` that run at a time, by engine rank (default: 2)", &c.LoadWorkers),
		sizeField("batch_bytes", "`size` of what is copied between two looks at the cancel word (default: 8MiB)", &c.BatchBytes),
	)
}
