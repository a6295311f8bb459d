package events

import (
	"math"
	"slices"
	"testing"
)

// A topic that is idle while another one fills the buffer.
func TestWhoHasEverythingLacksNothing(t *testing.T) {
	b := buffer{limit: 4, limitBytes: math.MaxInt, first: map[string]uint64{}, next: map[string]uint64{}}
	b.add(&Recorded{Topic: "idle", Seq: 100, begins: true})
	b.add(&Recorded{Topic: "idle", Seq: 101})
	for seq := range uint64(10) {
		b.add(&Recorded{Topic: "busy", Seq: 500 + seq, begins: seq == 0})
	}
	idle, busy := "idle", "busy"
	for _, test := range []struct {
		topic  *string
		from   uint64
		found  int
		lacked []string
	}{
		{&idle, 102, 0, nil}, // it has the last batch
		{&idle, 101, 0, []string{"idle"}},
		{&idle, 0, 0, []string{"idle"}},
		{&busy, 510, 0, nil},
		{&busy, 506, 4, nil},
		{&busy, 505, 4, []string{"busy"}},
		{nil, 0, 4, []string{"busy", "idle"}},
	} {
		found, lacking := b.from(test.topic, test.from)
		slices.Sort(lacking)
		if len(found) != test.found || !slices.Equal(lacking, test.lacked) {
			t.Errorf("from(%v, %d) = %d batches, lacking %q; want %d, %q", test.topic, test.from, len(found), lacking, test.found, test.lacked)
		}
	}
}
