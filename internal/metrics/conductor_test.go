package metrics

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

// countersOf are the lines of a conductor's counters.
func countersOf(t *testing.T, stats func() contract.Stats, services func() []contract.Status) string {
	t.Helper()
	r := NewRegistry("mooncake-conductor", "v1")
	r.AddConductor(stats, services)
	var counters []string
	for line := range strings.Lines(scrape(t, r)) {
		if name, _, _ := strings.Cut(strings.Fields(line)[0], "{"); strings.HasPrefix(line, Prefix+"conductor_") && strings.HasSuffix(name, "_total") {
			counters = append(counters, line)
		}
	}
	return strings.Join(counters, "")
}

// counted is a service of which each counter is another number.
func counted() contract.Status {
	s := contract.Status{Delay: time.Minute}
	n := uint64(100)
	for _, v := range []reflect.Value{reflect.ValueOf(&s).Elem(), reflect.ValueOf(&s.Blocks).Elem()} {
		for i := range v.NumField() {
			if f := v.Field(i); f.Kind() == reflect.Uint64 {
				n++
				f.SetUint(n)
			}
		}
	}
	return s
}

// What a service has counted stays counted when it has left, all of it.
func TestCountersOfWhoLeft(t *testing.T) {
	one := counted()
	here := countersOf(t, func() contract.Stats { return contract.Stats{} }, func() []contract.Status { return []contract.Status{one, one} })
	left := countersOf(t, func() contract.Stats { return contract.Stats{Left: one, Leavers: 1} }, func() []contract.Status { return []contract.Status{one} })
	if here != left || strings.Count(here, "\n") < 18 {
		t.Errorf("%s\n\nand when one has left:\n%s", here, left)
	}
}

// Who leaves while a scrape is under way is counted once.
func TestScrapeWhileAServiceLeaves(t *testing.T) {
	one := counted()
	want := countersOf(t, func() contract.Stats { return contract.Stats{} }, func() []contract.Status { return []contract.Status{one} })
	var now contract.Stats
	got := countersOf(t, func() contract.Stats { return now }, func() []contract.Status {
		now = contract.Stats{Left: one, Leavers: 1}
		return nil
	})
	if got != want {
		t.Errorf("%s\n\nwas expected:\n%s", got, want)
	}
}
