//go:build cgo && linux && (amd64 || arm64)

package mooncakec_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/mooncakec"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/mooncaketest"
)

// TestEngine is the behaviour of every engine, over both forms of the library, one of
// them with adapters that take registered memory only.
func TestEngine(t *testing.T) {
	for name, c := range map[string]struct {
		defines []string
		options string
	}{
		"any memory":        {nil, "lease_ms=600000"},
		"registered memory": {[]string{"SOFT_PIN_ACTION"}, "strict=1 lease_ms=600000"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, double(t, c.defines...), c.options, nil)
			health := r.ready()
			if health.Segment != "127.0.0.1:12345" || health.Versions["library"] == "" || health.Starts != 1 {
				t.Errorf("%+v", health)
			}
			mooncaketest.TestEngine(t, mooncaketest.Rig{Engine: r, Memory: r.memory})
		})
	}
}

// TestRegisteredOnce: the memory and the probe's, each once.
func TestRegisteredOnce(t *testing.T) {
	r := start(t, double(t), "", nil)
	r.ready()
	if n, want := r.counts("registered_bytes"), len(r.memory)+2*os.Getpagesize(); n != want {
		t.Errorf("%d bytes are registered, want %d", n, want)
	}
	if n := r.counts("creates"); n != 1 {
		t.Errorf("%d clients", n)
	}
}

// TestBatches: a call of ours is one of the library's, but for removals.
func TestBatches(t *testing.T) {
	r := start(t, double(t), "", nil)
	r.ready()
	var objects []mooncake.Object
	var keys []string
	for i := range mooncake.MaxTransfer {
		objects = append(objects, object(fmt.Sprintf("key %d", i), uint64(i)*64, 64)...)
		keys = append(keys, objects[i].Key)
	}
	before := r.counts("calls")
	if _, err := r.Put(t.Context(), mooncake.Replication{}, objects); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Get(t.Context(), objects); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Exist(t.Context(), keys); err != nil {
		t.Fatal(err)
	}
	if n := r.counts("calls") - before - 1; n != 3 {
		t.Errorf("%d calls of the library, want 3", n)
	}
}

// TestPins: how objects are kept arrives, whichever form the library takes it in;
// from one that shows no form there are no pins, and least of all other ones.
func TestPins(t *testing.T) {
	for define, want := range map[string][4]string{
		"FLAGS":           {"flags", "soft=1 hard=0", "soft=0 hard=1", "soft=1 hard=1"},
		"SOFT_PIN_ACTION": {"action", "soft=1 hard=0", "soft=0 hard=1", "soft=1 hard=1"},
		"NO_PINS":         {"none", "soft=0 hard=0", "soft=0 hard=0", "soft=0 hard=0"},
	} {
		t.Run(define, func(t *testing.T) {
			r := start(t, double(t, define), "", nil)
			if form := r.ready().Versions["pins"]; form != want[0] {
				t.Errorf("the form is %q, want %q", form, want[0])
			}
			for i, how := range []mooncake.Replication{{SoftPin: true}, {HardPin: true, Replicas: 3}, {SoftPin: true, HardPin: true, PreferredSegments: []string{"a:1", "b:2"}}, {}} {
				key := fmt.Sprintf("key %d", i)
				if answers, err := r.Put(t.Context(), how, object(key, 0, 64)); err != nil || answers[0] != 0 {
					t.Fatal(answers, err)
				}
				pinned := "soft=0 hard=0"
				if i < 3 {
					pinned = want[i+1]
				}
				text := fmt.Sprintf("replicas=%d %s ttl=0 segments=%s", max(how.Replicas, 1), pinned, [4]string{2: "a:1,b:2,"}[i])
				if got := r.text("double@how@" + key); got != text {
					t.Errorf("%+v is %q, want %q", how, got, text)
				}
			}
		})
	}
}

// TestAnswers: what the library says of a key is its answer; what makes no sense is
// none.
func TestAnswers(t *testing.T) {
	r := start(t, double(t), "capacity=1000000", nil)
	r.ready()
	for _, code := range []mooncake.Code{-1, -200, mooncake.CodeNotReady, mooncake.CodeNotFound, mooncake.CodeLeaseExpired, mooncake.CodeTransferFailed, mooncake.CodeRPCFailed, -1 << 31} {
		key := fmt.Sprintf("x@code%d", code)
		for op, answers := range map[string]func() ([]mooncake.Answer, error){
			"exist":  func() ([]mooncake.Answer, error) { return r.Exist(t.Context(), []string{"fine", key}) },
			"remove": func() ([]mooncake.Answer, error) { return r.Remove(t.Context(), []string{"fine", key}) },
			"get": func() ([]mooncake.Answer, error) {
				return r.Get(t.Context(), append(object("fine", 0, 9), object(key, 9, 9)...))
			},
			"put": func() ([]mooncake.Answer, error) {
				return r.Put(t.Context(), mooncake.Replication{}, append(object("other", 0, 9), object(key, 9, 9)...))
			},
		} {
			if got, err := answers(); err != nil || len(got) != 2 || got[1].Code() != code {
				t.Errorf("%s: %v, %v, want %d", op, got, err, code)
			}
		}
	}
	var internal *mooncake.Error
	for what, key := range map[string]string{"a call that fails": "x@call-1", "a get of more than there is room for": "x@longer"} {
		if got, err := r.Get(t.Context(), object(key, 0, 64)); !errors.As(err, &internal) || internal.Code != mooncake.CodeInternal {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
	if got, err := r.RemovePrefix(t.Context(), "none@call-1"); !errors.As(err, &internal) || internal.Code != mooncake.CodeInternal {
		t.Errorf("remove: %v, %v", got, err)
	}
	// A library that says nothing has stored nothing.
	if got, err := r.Put(t.Context(), mooncake.Replication{}, object("x@silent", 0, 64)); err != nil || got[0].Code() != mooncake.CodeInternal {
		t.Errorf("silence: %v, %v", got, err)
	}
	if got, err := r.Put(t.Context(), mooncake.Replication{}, object("large", 0, 1<<20)); err != nil || got[0].Code() != mooncake.CodeNoSpace {
		t.Errorf("no room: %v, %v", got, err)
	}
	// Torn bytes are told from whole ones by the answer.
	copy(r.memory, "whole")
	if got, err := r.Put(t.Context(), mooncake.Replication{}, object("x@torn", 0, 64)); err != nil || got[0] != 0 {
		t.Fatal(got, err)
	}
	if got, err := r.Get(t.Context(), object("x@torn", 64, 64)); err != nil || got[0].Code() != mooncake.CodeLeaseExpired {
		t.Errorf("a lease that ran out: %v, %v", got, err)
	}
	if health := r.Health(); !health.Ready || health.Starts != 1 {
		t.Errorf("%+v", health)
	}
}

// TestLibraries: what can't be loaded is named, and its function; what is only wished
// for may be missing.
func TestLibraries(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text.so")
	if err := os.WriteFile(text, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	without := double(t, "WITHOUT_REMOVE")
	for path, want := range map[string][]string{
		"/nonexistent/libmooncake_store.so": {"/nonexistent/libmooncake_store.so"},
		text:                                {text},
		without:                             {without, "mooncake_store_remove"},
	} {
		r := start(t, path, "", nil)
		health := r.says(want[0])
		for _, part := range want {
			if !strings.Contains(health.Reason, part) || health.Starts != 0 {
				t.Errorf("%s: %+v, want %q", path, health, part)
			}
		}
		if _, err := r.Exist(t.Context(), []string{"key"}); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), want[0]) {
			t.Errorf("%s: a call says %v", path, err)
		}
	}
	r := start(t, double(t, "WITHOUT_GET_HOSTNAME", "WITHOUT_HEALTH_CHECK"), "", func(c *mooncakec.Config) { c.Limits.Watch = 1 })
	if health := r.ready(); health.Segment != "" {
		t.Errorf("%+v", health)
	}
	// One that appears is loaded.
	later := filepath.Join(t.TempDir(), "libmooncake_store.so")
	r = start(t, later, "", nil)
	r.says(later)
	if err := os.Symlink(double(t), later); err != nil {
		t.Fatal(err)
	}
	r.ready()
}

// TestRefusedSettings: what can never work ends Run.
func TestRefusedSettings(t *testing.T) {
	for want, change := range map[string]func(*mooncakec.Config){
		"no absolute path": func(c *mooncakec.Config) { c.Library = "libmooncake_store.so" },
		`names "acme"`:     func(c *mooncakec.Config) { c.Cluster.TenantID = "acme" },
	} {
		r := start(t, "/nonexistent/library.so", "", change)
		err := <-r.ended
		if !errors.Is(err, mooncakec.ErrLibrary) || !strings.Contains(err.Error(), want) || !strings.Contains(r.Health().Reason, want) {
			t.Errorf("%v, %+v, want %q", err, r.Health(), want)
		}
		r.ended <- err
	}
}

// TestSetup: what fails in it is told with its code, and is tried again.
func TestSetup(t *testing.T) {
	for options, want := range map[string][]string{
		"setup=-900":    {"setup", "RPC_FAIL (-900)", "127.0.0.1:1"},
		"register=-600": {"register", "INVALID_PARAMS (-600)", "ulimit -l"},
	} {
		r := start(t, double(t), options, nil)
		health := r.says(want[0])
		for _, part := range want {
			if !strings.Contains(health.Reason, part) || health.Starts != 0 {
				t.Errorf("%s: %+v, want %q", options, health, part)
			}
		}
	}
	gone := newFlag(t)
	gone.raise()
	r := start(t, double(t), "gone="+gone.path, nil)
	r.says("probe")
	gone.lower()
	r.ready()
	if made, destroyed := r.counts("creates"), r.counts("destroys"); made != destroyed+1 {
		t.Errorf("%d clients, %d are destroyed", made, destroyed)
	}
	// A cluster without room serves what it has.
	r = start(t, double(t), "capacity=1", nil)
	r.ready()
}

// TestClosedClient: one that says that it is not set up any more is replaced.
func TestClosedClient(t *testing.T) {
	closed := newFlag(t)
	r := start(t, double(t), "closed="+closed.path, func(c *mooncakec.Config) { c.Limits.Watch = 1 })
	r.ready()
	copy(r.memory, "bytes that stay in the cluster")
	if answers, err := r.Put(t.Context(), mooncake.Replication{}, object("key", 0, 64)); err != nil || answers[0] != 0 {
		t.Fatal(answers, err)
	}
	closed.raise()
	r.await("replaced", func(h mooncake.Health) bool { return h.Starts >= 2 })
	closed.lower()
	for {
		r.ready()
		answers, err := r.Get(t.Context(), object("key", 64, 64))
		if errors.Is(err, store.ErrUnavailable) {
			continue // replaced once more
		}
		if err != nil || answers[0] != 64 || !bytes.Equal(r.memory[:64], r.memory[64:128]) {
			t.Errorf("%v, %v", answers, err)
		}
		break
	}
}
