package level

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// TestGlanceAhead: answers ahead are those of probes one by one, whatever is known of the
// chunks, by answers or by events, of hashes of every length.
func TestGlanceAhead(t *testing.T) {
	const chunks = 3*aheadChunks + 5
	for length := 8; length <= kv.MaxHashBytes; length++ {
		t.Run(fmt.Sprintf("length=%d", length), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(length), 1))
			l := &Level{known: newKnown(1<<10, time.Minute), told: newTold(1<<10, time.Minute)}
			s := &space{spec: &kv.NamespaceSpec{Groups: make([]kv.GroupSpec, 2)}, seed: rng.Uint64()}
			blob := make([]byte, chunks*length)
			for i := range blob {
				blob[i] = byte(rng.Uint32())
			}
			hashes, err := kv.NewHashBlob(blob, length)
			if err != nil {
				t.Fatal(err)
			}
			for i := range chunks {
				hash := hashes.At(i)
				switch digest := s.digest(1, &hash); rng.IntN(5) {
				case 0:
					l.known.put(digest, absent, 0, 1000)
				case 1:
					l.known.put(digest, present, 0, int64(1+rng.IntN(1000)))
				case 2:
					l.known.put(digest, concluded, 0, 1000)
				case 3:
					l.told.stored(digest, 0, 1, 0, 0)
				}
			}
			alone, ahead := &Glance{level: l, space: s, nowMS: 500}, &Glance{level: l, space: s, nowMS: 500}
			seen := map[kv.Existence]int{}
			for from := 0; from < chunks; from += 1 + rng.IntN(20) {
				answers := make([]kv.Existence, 1+rng.IntN(chunks-from))
				ahead.Ahead(1, hashes, from, answers)
				for i, got := range answers {
					hash := hashes.At(from + i)
					if want := alone.Exists(1, &hash); got != want {
						t.Fatalf("chunk %d is %s, alone %s", from+i, got, want)
					}
					seen[got]++
				}
			}
			if len(seen) != 3 || alone.byTold != ahead.byTold || l.events.lookups.Load() != 2 {
				t.Errorf("answers %v, %d lookups by events", seen, l.events.lookups.Load())
			}
			none := &Glance{level: l}
			answers := []kv.Existence{kv.Present, kv.Unknown}
			none.Ahead(1, hashes, 0, answers)
			if answers[0] != kv.Absent || answers[1] != kv.Absent {
				t.Errorf("a cluster that is not in service has chunks: %v", answers)
			}
		})
	}
}
