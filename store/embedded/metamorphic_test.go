package embedded

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

// The metamorphic test: random operations against a naive model of the store.
//
//	go test ./store/embedded -run TestMetamorphic -metamorphic.for=10m -metamorphic.first=0
//	go test ./store/embedded -run TestMetamorphic -metamorphic.seed=123   # one run again
//	go test ./store/embedded -tags mutants -run TestMutants               # can it fail?
var (
	metamorphicFor  = flag.Duration("metamorphic.for", 3*time.Second, "how long random runs are made")
	metamorphicSeed = flag.Uint64("metamorphic.seed", 0, "make the run of this seed only, and print its operations")
	// A change is judged by runs that were green before it; nightly runs are new ones.
	metamorphicFirst = flag.Uint64("metamorphic.first", 1, "the first run's seed, of which the others follow; 0: one that is drawn")
)

// firstSeed returns the seed of the first random run.
func firstSeed() uint64 {
	if *metamorphicFirst != 0 {
		return *metamorphicFirst
	}
	return rand.Uint64() | 1
}

// stepsPerRun is long enough for a store to fill, crash and fill again.
const stepsPerRun = 400

// TestMetamorphic makes random runs, of which each is given by its seed: clients
// that put, get, die and come back, lookups, leases, resets, clock jumps, a
// master that is killed between operations and within them. After every
// operation the state of every chunk is compared with what a naive model of the
// store allows.
func TestMetamorphic(t *testing.T) {
	if *metamorphicSeed != 0 {
		runMetamorphic(t, *metamorphicSeed, os.Stdout, map[string]int{})
		return
	}
	seen := map[string]int{}
	runs := 0
	first := firstSeed()
	for end := time.Now().Add(*metamorphicFor); time.Now().Before(end) && !t.Failed(); runs++ {
		runMetamorphic(t, first+uint64(runs), nil, seen)
	}
	names := slices.Sorted(maps.Keys(seen))
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d", name, seen[name])
	}
	t.Logf("%d runs from seed %d: %s", runs, first, strings.Join(names, ", "))
	if runs < 2000 { // what is rare may be missing
		return
	}
	for _, event := range worthSeeing {
		if seen[event] == 0 {
			t.Errorf("%d runs have never seen %q: the test shows less than it should", runs, event)
		}
	}
}

// runMetamorphic makes one run. trace, if not nil, is told every operation.
func runMetamorphic(t *testing.T, seed uint64, trace *os.File, seen map[string]int) {
	c := newChaos(t, seed, seen)
	c.trace = trace
	defer func() {
		fault := recover()
		c.stopWatchers()
		if fault != nil {
			t.Errorf("panic: %v\n%s", fault, debug.Stack())
		}
		if t.Failed() {
			t.Logf("the last operations:\n  %s", strings.Join(c.latest(), "\n  "))
			t.Logf("again with: go test ./store/embedded -run '^TestMetamorphic$' -metamorphic.seed=%d", seed)
		}
		if fault != nil {
			t.FailNow()
		}
	}()
	for range stepsPerRun {
		c.step()
	}
	c.finish()
}

// operation is something that happens to the store, with how often it does.
type operation struct {
	name   string
	weight int
	do     func(c *chaos)
}

// operations are what a run is made of. Each changes the store and the model,
// and has the model compared where it calls the master.
func operations() []operation {
	return []operation{
		{"put", 26, (*chaos).opPut},
		{"put_start", 12, (*chaos).opPutStart},
		{"put_end", 9, (*chaos).opPutEnd},
		{"put_revoke", 3, (*chaos).opPutRevoke},
		{"get", 9, (*chaos).opGet},
		{"release", 7, (*chaos).opRelease},
		{"load", 8, (*chaos).opLoad},
		{"lookup", 8, (*chaos).opLookup},
		{"report", 4, (*chaos).opReport},
		{"lease", 5, (*chaos).opLease},
		{"end leases", 2, (*chaos).opEndLeases},
		{"clock", 3, (*chaos).opClock},
		{"session", 8, (*chaos).opSession},
		{"kill client", 2, (*chaos).opKillClient},
		{"reap", 2, (*chaos).opReap},
		{"scribble", 4, (*chaos).opScribble},
		{"reset", 1, (*chaos).opReset},
		{"namespace", 2, (*chaos).opNamespace},
		{"prepare", 2, (*chaos).opPrepare},
		{"pin", 4, (*chaos).opPin},
		{"unpin", 2, (*chaos).opUnpin},
		{"remove", 2, (*chaos).opRemove},
		{"evict", 2, (*chaos).opEvict},
		{"quota", 2, (*chaos).opQuota},
		{"time to live", 2, (*chaos).opDefaultTTL},
		{"drain", 1, (*chaos).opDrain},
		{"mistake", 5, (*chaos).opMistake},
		{"crash", 1, (*chaos).opCrash},
		{"torn crash", 2, (*chaos).opTornCrash},
	}
}
