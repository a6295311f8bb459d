package compare

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mooncake-sidecar/sidecar/bench/machine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRun(t *testing.T) {
	launcher := &fakeLauncher{t: t, garble: InTree}
	options := smallOptions()
	run := newRun(t, launcher, options)
	if err := run.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := slices.Sorted(slices.Values(options.With)); !reflect.DeepEqual(launcher.closed.names, want) {
		t.Errorf("closed %v, not %v", launcher.closed.names, want)
	}
	report := NewReport(machine.Facts{}, options, run.Pairs)
	if len(report.Warm) != 8 || len(report.Cold) != 10 || len(report.Overlap) != 10 || len(report.Targets) != 4 {
		t.Fatalf("%d warm, %d cold, %d overlap rows, %d targets", len(report.Warm), len(report.Cold), len(report.Overlap), len(report.Targets))
	}
	for _, row := range report.Warm {
		wantWrong := 0
		if row.System == InTree {
			wantWrong = 4
		}
		if row.Pairs != 4 || row.WrongOutputs != wantWrong || row.System != Null && row.LeastCachedTokens != (row.Tokens-1)/128*128 {
			t.Errorf("warm row %+v", row)
		}
		if (row.OverNullMs == nil) != (row.System == Null) {
			t.Errorf("row of %s has %v over null", row.System, row.OverNullMs)
		}
	}
	for _, row := range report.Cold {
		if row.Pairs != 4 || row.TTFTMs <= 0 {
			t.Errorf("cold row %+v", row)
		}
	}
	for _, pair := range run.Pairs {
		for name, seen := range pair.Seen {
			if pair.Part == PartOverlap && (len(seen.TTFTMs) != options.Arrivals || len(seen.GapMs) != decodedTokens*options.Arrivals-1) {
				t.Errorf("%s saw %d arrivals and %d gaps", name, len(seen.TTFTMs), len(seen.GapMs))
			}
		}
	}
	for _, row := range report.Overlap {
		if row.Rounds != 2 || row.CPUSeconds.Value != float64(options.Arrivals+1) || row.CPURatio != (Interval{1, 1, 1}) {
			t.Errorf("overlap row %+v", row)
		}
	}
	if err := report.Write(filepath.Join(t.TempDir(), "report.json")); err != nil {
		t.Error(err)
	}
	var table bytes.Buffer
	if err := report.WriteTable(&table); err != nil || !strings.Contains(table.String(), "engine-warm") {
		t.Errorf("table: %v\n%s", err, table.String())
	}
}

// The engine alone and the null connector have no store to empty, and every cold
// prompt is new to the engine.
func TestRunAsks(t *testing.T) {
	launcher := &fakeLauncher{t: t}
	options := smallOptions()
	options.Parts, options.StoreBytes = []string{PartCold}, 1<<20
	run := newRun(t, launcher, options)
	if err := run.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, engine := range launcher.systems {
		want := "all"
		if name == None || name == Null {
			want = "own"
		}
		if len(engine.mu.resets) == 0 || slices.ContainsFunc(engine.mu.resets, func(what string) bool { return what != want }) {
			t.Errorf("%s was emptied %v", name, engine.mu.resets)
		}
		if len(engine.mu.asked) != 2+8 {
			t.Errorf("%s was asked %d times", name, len(engine.mu.asked))
		}
	}
}

func TestRunFails(t *testing.T) {
	launcher := &fakeLauncher{t: t, fail: LMCache}
	err := newRun(t, launcher, smallOptions()).Do(t.Context())
	if err == nil || !strings.Contains(err.Error(), "lmcache is out of order") {
		t.Errorf("error %v", err)
	}
	if len(launcher.closed.names) != len(launcher.systems) {
		t.Errorf("of %d systems, %v were closed", len(launcher.systems), launcher.closed.names)
	}
}

func TestRunInterrupted(t *testing.T) {
	launcher := &fakeLauncher{t: t}
	ctx, cancel := context.WithCancel(t.Context())
	run := newRun(t, launcher, smallOptions())
	run.Save = func([]Pair) error { cancel(); return nil }
	if err := run.Do(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if len(run.Pairs) != 1 || len(launcher.closed.names) != 5 {
		t.Errorf("%d pairs, closed %v", len(run.Pairs), launcher.closed.names)
	}
}

// A pair that other work disturbed is measured again, and kept in the end.
func TestRunDisturbed(t *testing.T) {
	launcher := &fakeLauncher{t: t}
	options := smallOptions()
	options.Parts, options.Tokens, options.Rounds, options.Prompts = []string{PartCold}, []int{256}, 1, 1
	run := newRun(t, launcher, options)
	looks := 0
	run.Busy = func() (time.Duration, error) {
		looks++
		return time.Duration(looks) * time.Hour, nil
	}
	if err := run.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	if looks != 2*attempts || len(run.Pairs) != 1 || run.Pairs[0].OthersShare <= options.MaxOthers {
		t.Errorf("%d looks, pairs %+v", looks, run.Pairs)
	}
	if report := NewReport(machine.Facts{}, options, run.Pairs); report.DisturbedPairs != 1 {
		t.Errorf("%d pairs are called disturbed", report.DisturbedPairs)
	}
	prompts := map[int]int{}
	for _, n := range launcher.systems[Ours].mu.asked {
		prompts[n]++
	}
	if prompts[256] != attempts || len(launcher.systems[Ours].mu.store) != 2+attempts {
		t.Errorf("asked %v, %d prompts are stored", prompts, len(launcher.systems[Ours].mu.store))
	}
}

func TestResume(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "compare.json")
	options := smallOptions()
	if pairs, err := Resume(path, options); err != nil || pairs != nil {
		t.Fatalf("without a file: %v, %v", pairs, err)
	}
	run := newRun(t, &fakeLauncher{t: t}, options)
	run.Save = func(pairs []Pair) error { return (&Report{Options: options, Pairs: pairs}).Write(path) }
	if err := run.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	pairs, err := Resume(path, options)
	if err != nil || !reflect.DeepEqual(pairs, run.Pairs) {
		t.Fatalf("resumed %d pairs of %d, %v", len(pairs), len(run.Pairs), err)
	}
	more := options
	more.Rounds = 3
	launcher := &fakeLauncher{t: t}
	again := newRun(t, launcher, more)
	again.Pairs = pairs
	if err := again.Do(t.Context()); err != nil || len(again.Pairs) != len(pairs)+2*2*2 {
		t.Errorf("%d pairs after one more round, %v", len(again.Pairs), err)
	}
	complete := newRun(t, launcher, more)
	complete.Pairs, complete.Launcher = again.Pairs, nil // nothing is left to launch for
	if err := complete.Do(t.Context()); err != nil {
		t.Error(err)
	}
	other := options
	other.Seed++
	if _, err := Resume(path, other); err == nil || !strings.Contains(err.Error(), "--out") {
		t.Errorf("resuming with another seed: %v", err)
	}
}
