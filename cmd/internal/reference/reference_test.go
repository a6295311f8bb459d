package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../../.."

func TestPageIsCurrent(t *testing.T) {
	want, err := page(root)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, pagePath))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is stale: run make docs", pagePath)
	}
}

func TestPageHasEverySetting(t *testing.T) {
	text, err := page(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| `store_bytes` | size |  | Size of the store", "| `load_timeout_s` | time | `10s` |", "| `lookup_timeout_ms` | milliseconds | `50` |", "| `autostart` | true/false | `true` |",
		"| `store_tp_size` | number | `0` |", "| `store_retention` | text or number | `\"engine\"` |",
		"| `lease_ttl` | `--lease-ttl` | `MOONCAKE_SIDECAR_LEASE_TTL` | time | 30s |", "| not in a file | `--autostarted` |", "can be changed at run time",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	for _, once := range []string{"| `log_level` | `--log-level`", "| `http_listen` | `--http-listen`"} {
		if n := strings.Count(text, once); n == 0 || n > 2 {
			t.Errorf("%s is there %d times", once, n)
		}
	}
}

func TestShimThatCannotBeRead(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(root, shimPath))
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string][2]string{
		"no class":         {"class Settings:", "class Other:"},
		"no text":          {`"""Compare checksums on load."""`, ""},
		"parsed, no field": {`    "autostart": parse_bool,`, `    "autostart": parse_bool,` + "\n" + `    "new_key": parse_bool,`},
		"odd size":         {"store_bytes: int | None = None", "store_bytes: int | None = four()"},
	} {
		changed := strings.Replace(string(source), change[0], change[1], 1)
		if changed == string(source) {
			t.Fatalf("%s: nothing changed", name)
		}
		if _, _, err := readShim(changed); err == nil {
			t.Errorf("%s: read all the same", name)
		}
	}
}
