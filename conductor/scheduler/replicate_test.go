package scheduler

import (
	"slices"
	"testing"
	"time"
)

func cluster3() []Prefiller {
	return []Prefiller{{LocalBlocks: 5, ReadyBlocks: 5, Queue: ms(9)}, {Queue: ms(8)}, {Queue: ms(1), Ingress: ms(1)}}
}

// TestHotPrefixIsCopied: once it was used often enough for the copies it has, to an
// instance whose links are idle.
func TestHotPrefixIsCopied(t *testing.T) {
	r := NewReplication(ReplicationOptions{Uses: 2, HalfLife: time.Minute})
	all := cluster3()
	if c, ok := r.Used(0, 7, 5, all); ok {
		t.Fatalf("copied at first use: %+v", c)
	}
	c, ok := r.Used(0, 7, 5, all)
	if !ok || c != (Copy{Source: 0, Target: 1, Blocks: 5}) {
		t.Fatalf("at the second use: %+v, %v", c, ok)
	}
	all[1].LocalBlocks, all[1].ReadyBlocks = 5, 5
	all[2].Ingress = 0
	if c, ok := r.Used(0, 7, 5, all); ok {
		t.Errorf("a third copy for three uses: %+v", c)
	}
	if c, ok := r.Used(0, 7, 5, all); !ok || c.Target != 2 {
		t.Errorf("four uses: %+v, %v", c, ok)
	}
}

// TestACopyIsAskedForOnce, and again when it has not come.
func TestACopyIsAskedForOnce(t *testing.T) {
	r := NewReplication(ReplicationOptions{Uses: 1, HalfLife: time.Minute})
	all := cluster3()
	all[2].Ingress = time.Hour
	var asked []time.Duration
	for now := time.Duration(0); now < 2*time.Minute; now += time.Second {
		if c, ok := r.Used(now, 7, 5, all); ok && c.Target == 1 {
			asked = append(asked, now)
		}
	}
	if !slices.Equal(asked, []time.Duration{0, time.Minute}) {
		t.Errorf("asked for at %v", asked)
	}
}

// TestUsesFade: two uses far apart are not two.
func TestUsesFade(t *testing.T) {
	r := NewReplication(ReplicationOptions{Uses: 1.5, HalfLife: time.Minute})
	r.Used(0, 7, 5, cluster3())
	if _, ok := r.Used(2*time.Minute, 7, 5, cluster3()); ok {
		t.Error("copied for 1.25 uses")
	}
	if _, ok := r.Used(2*time.Minute, 7, 5, cluster3()); !ok {
		t.Error("not copied for 2.25 uses")
	}
}

// TestNothingIsCopied where it is not asked for, too short, or not to be had.
func TestNothingIsCopied(t *testing.T) {
	for name, c := range map[string]struct {
		options ReplicationOptions
		blocks  int
		change  func([]Prefiller)
	}{
		"off":       {ReplicationOptions{}, 5, func([]Prefiller) {}},
		"short":     {ReplicationOptions{Uses: 1, HalfLife: 1, MinBlocks: 6}, 5, func([]Prefiller) {}},
		"not ready": {ReplicationOptions{Uses: 1, HalfLife: 1}, 5, func(all []Prefiller) { all[0].ReadyBlocks = 4 }},
		"everywhere": {ReplicationOptions{Uses: 1, HalfLife: 1}, 5, func(all []Prefiller) {
			all[1], all[2] = all[0], all[0]
		}},
		"links are taken": {ReplicationOptions{Uses: 1, HalfLife: 1}, 5, func(all []Prefiller) { all[1].Egress = 1 }},
	} {
		all := cluster3()
		c.change(all)
		r := NewReplication(c.options)
		for range 10 {
			if got, ok := r.Used(0, 7, c.blocks, all); ok {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
}

// TestColdestIsForgotten: memory is fixed, and a hot prefix outlives many cold ones.
func TestColdestIsForgotten(t *testing.T) {
	r := NewReplication(ReplicationOptions{Uses: 1e9, HalfLife: time.Hour, Prefixes: 8})
	for key := range uint64(1000) {
		r.Used(0, 7777, 5, cluster3())
		r.Used(0, key+1, 5, cluster3())
	}
	if len(r.sets) != 1 {
		t.Fatalf("%d sets", len(r.sets))
	}
	if got := r.count(0, 7777).uses; got != 1001 {
		t.Errorf("the hot prefix was used %v times, want 1001", got)
	}
	if (&ReplicationOptions{Uses: 1}).Validate() == nil || (&ReplicationOptions{Uses: -1}).Validate() == nil {
		t.Error("wrong options were taken")
	}
}
