package embedded

import (
	"strings"
	"testing"
)

// TestLifecycleTable writes the machine down once more, as text: what is not in
// it must be refused.
func TestLifecycleTable(t *testing.T) {
	const machine = `
gone      | put granted       | creating
gone      | recovered in part | storing
gone      | recovered whole   | active
creating  | shard arrived     | storing
creating  | completed         | active
creating  | puts abandoned    | evicting
creating  | dropped           | evicting
storing   | shard arrived     | storing
storing   | completed         | active
storing   | dropped           | evicting
active    | move begun        | migrating
active    | time up           | expired
active    | dropped           | evicting
migrating | move ended        | active
migrating | time up           | expired
migrating | dropped           | evicting
expired   | stored again      | active
expired   | dropped           | evicting
evicting  | freed             | gone`
	want := map[[2]string]string{}
	for line := range strings.Lines(strings.TrimSpace(machine)) {
		f := strings.Split(line, "|")
		want[[2]string{strings.TrimSpace(f[0]), strings.TrimSpace(f[1])}] = strings.TrimSpace(f[2])
	}
	seen := 0
	for s := Gone; s < stateCount; s++ {
		for e := PutGranted; e < eventCount; e++ {
			next, ok := s.Next(e)
			to, allowed := want[[2]string{s.String(), e.String()}]
			if ok != allowed || ok && next.String() != to {
				t.Errorf("%v after %v: %v %v, want %q", s, e, next, ok, to)
			}
			if ok {
				seen++
			} else if next != Gone && next != s {
				t.Errorf("a refused event led from %v to %v", s, next)
			}
		}
	}
	if seen != len(want) {
		t.Errorf("%d transitions, want %d", seen, len(want))
	}
	if _, ok := stateCount.Next(Dropped); ok {
		t.Error("a state out of range has a successor")
	}
	if _, ok := Active.Next(eventCount); ok {
		t.Error("an event out of range is allowed")
	}
}

// TestLifecycleEnds: from every state the chunk can be got rid of, and only a
// chunk whose slots are freed is gone.
func TestLifecycleEnds(t *testing.T) {
	for s := Creating; s < stateCount; s++ {
		if s == Evicting {
			continue
		}
		next, ok := s.Next(Dropped)
		if !ok || next != Evicting {
			t.Errorf("a chunk that is %v can't be dropped", s)
		}
		for e := PutGranted; e < eventCount; e++ {
			if next, ok := s.Next(e); ok && next == Gone {
				t.Errorf("%v leads from %v to gone, past evicting", e, s)
			}
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("an impossible event was let through")
		}
	}()
	Gone.after(Dropped)
}

func TestStateClasses(t *testing.T) {
	for s := Gone; s < stateCount; s++ {
		if s.Whole() && !s.Resident() {
			t.Errorf("%v is whole and not resident", s)
		}
	}
	if Creating.Resident() || Evicting.Resident() || Expired.Whole() || !Migrating.Whole() {
		t.Error("states are in the wrong class")
	}
}
