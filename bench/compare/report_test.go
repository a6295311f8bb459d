package compare

import (
	"math"
	"testing"

	"github.com/mooncake-sidecar/sidecar/bench/machine"
)

// known are pairs whose figures one can tell: overheads 1, 5, 3 and 2 ms by median.
func known() []Pair {
	var pairs []Pair
	for i, noise := range []float64{-0.5, 0, 0.5} {
		warm := func(overhead float64) Seen {
			return Seen{EngineWarmMs: 10 + noise, StoreWarmMs: 10 + noise + overhead + noise, CachedTokens: 1920}
		}
		cold := func(ratio float64) Seen { return Seen{TTFTMs: []float64{100 * (1 + noise) * ratio}} }
		pairs = append(pairs,
			Pair{Cell: Cell{PartWarm, "kv2k", 2000}, Round: i, Seen: map[string]Seen{Null: warm(1), InTree: warm(5), LMCache: warm(9), Ours: warm(2)}},
			Pair{Cell: Cell{PartCold, "kv2k", 2000}, Round: i, Seen: map[string]Seen{None: cold(1), Null: cold(1), InTree: cold(1.2), LMCache: cold(1.01), Ours: cold(1.02)}},
		)
	}
	return pairs
}

func TestTargets(t *testing.T) {
	options := Options{With: []string{None, Null, InTree, LMCache, Ours}, Models: []string{"kv2k"}, Tokens: []int{2000}, Parts: []string{PartWarm, PartCold}, Seed: 1}
	report := NewReport(machine.Facts{}, options, known())
	if len(report.Targets) != 2 {
		t.Fatalf("%d targets", len(report.Targets))
	}
	close := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
	// Null 1, the better peer 5: at most 1 + 4/2.
	if w := report.Targets[0]; !close(w.Value, 2) || !close(w.Limit, 3) || !w.Met || !close(w.Excess.Value, -1) {
		t.Errorf("warm: %+v", w)
	}
	spoilt := known()
	seen := spoilt[0].Seen[Ours]
	seen.Wrong = "token 0"
	spoilt[0].Seen[Ours] = seen
	if NewReport(machine.Facts{}, options, spoilt).Targets[0].Met {
		t.Error("wrong outputs meet a target")
	}
	// The better peer's 1.01 is less than 1.03.
	if c := report.Targets[1]; !close(c.Value, 1.02) || !close(c.Limit, 1.01) || c.Met {
		t.Errorf("cold: %+v", c)
	}
	for _, row := range report.Warm {
		if row.System == Ours && (row.OverNullMs == nil || !close(row.OverNullMs.Value, 1) || !close(row.OverNullMs.Low, 1)) {
			t.Errorf("noise that pairs share is not taken out: %+v", row.OverNullMs)
		}
	}
	options.With = []string{Null, Ours}
	options.Parts = []string{PartWarm}
	if alone := NewReport(machine.Facts{}, options, known()); len(alone.Targets) != 0 {
		t.Errorf("a target without peers: %+v", alone.Targets)
	}
}

// TestRemoteTargets: on one cluster the in-tree connector alone is the measure.
func TestRemoteTargets(t *testing.T) {
	options := Options{With: []string{Null, InTree, Ours}, Models: []string{"kv2k", "kv64k"}, Tokens: []int{2000}, Parts: []string{PartWarm}, Seed: 1, Cluster: true}
	pairs := known()
	for _, pair := range known() {
		pair.Model = "kv64k"
		pairs = append(pairs, pair)
	}
	targets := NewReport(machine.Facts{}, options, pairs).Targets
	if len(targets) != 2 {
		t.Fatalf("%d targets", len(targets))
	}
	// Of the in-tree connector's 5, ours 2.
	for i, want := range []float64{0.75 * 5, 0.5 * 5} {
		if got := targets[i]; math.Abs(got.Limit-want) > 1e-9 || math.Abs(got.Value-2) > 1e-9 || !got.Met {
			t.Errorf("%s: %+v, limit %v", got.Model, got, want)
		}
	}
	for _, pair := range pairs {
		slow := pair.Seen[Ours]
		slow.StoreWarmMs++
		pair.Seen[Ours] = slow
	}
	if targets = NewReport(machine.Facts{}, options, pairs).Targets; !targets[0].Met || targets[1].Met {
		t.Errorf("ours 3 of the in-tree connector's 5: %+v", targets)
	}
	options.With = []string{Null, Ours}
	if targets = NewReport(machine.Facts{}, options, pairs).Targets; len(targets) != 0 {
		t.Errorf("a target without the in-tree connector: %+v", targets)
	}
}
