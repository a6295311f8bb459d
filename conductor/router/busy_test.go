package router

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/fleet"
)

// TestBusyEnginesAreLeftOut: whatever the policy, a request whose tokens would come too
// slowly at one engine goes to the other.
func TestBusyEnginesAreLeftOut(t *testing.T) {
	for _, policy := range Policies() {
		t.Run(string(policy), func(t *testing.T) {
			s := newSite(t, 2, func(o *siteOptions) { o.config.Policy = policy })
			_, flight := s.fleet.Begin(t.Context(), fleet.Target{Engine: 1}, fleet.Load{Tokens: 1 << 40, CachedTokens: 1 << 40, Decode: true})
			defer flight.End()
			for i := range 20 {
				if got := s.post(pathCompletions, completion(fmt.Sprint(i)), headerTBT, "10", headerTTFT, "3600"); got.status != http.StatusOK || got.engine() != "a" {
					t.Fatalf("%d: %+v", i, got)
				}
			}
			busy := 0
			for _, c := range s.decision().Candidates {
				if c.Busy && c.Engine == "b" && !c.Chosen {
					busy++
				}
			}
			if busy != 1 {
				t.Errorf("%+v", s.decision().Candidates)
			}
		})
	}
}
