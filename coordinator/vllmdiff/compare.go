package vllmdiff

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/mooncake-sidecar/sidecar/bench/coordcases"
	"github.com/mooncake-sidecar/sidecar/coordinator"
)

// Outcome says how two answers compare.
type Outcome int

const (
	// Equal: both gave the same answer.
	Equal Outcome = iota
	// Refused: vLLM asserts, and we return an error that says so.
	Refused
	// Safe: vLLM raises in the middle of a lookup, and we answer with the hit it
	// had found, or none; or vLLM answers with a hit that can't be loaded, and
	// we with none.
	Safe
)

// reply is vLLM's answer to a lookup, or what it raised.
type reply struct {
	Keys
	Raised string   `json:"raised"`
	Hit    *int     `json:"hit"`
	Tails  [][2]int `json:"tails"`
}

// Compare answers the case and compares with vLLM's answer. The error says in
// what the two differ.
func Compare(c *Case, theirs string) (Outcome, error) {
	ours, err := c.Answer()
	if err != nil && !errors.Is(err, coordinator.ErrUnservable) {
		return 0, fmt.Errorf("we refuse: %w; vLLM says %s", err, theirs)
	}
	text := string(ours.AppendJSON(nil))
	if err == nil && text == theirs && c.Op != coordcases.OpLookup {
		return Equal, nil
	}
	var r reply
	if decodeErr := json.Unmarshal([]byte(theirs), &r); decodeErr != nil {
		return 0, fmt.Errorf("vLLM's answer %q: %w", theirs, decodeErr)
	}
	switch {
	case r.Raised == "AssertionError" && err != nil:
		return Refused, nil //nolint:nilerr // both refuse: that is agreement, not an error
	case err != nil:
		return 0, fmt.Errorf("we refuse: %w; vLLM says %s", err, theirs)
	case c.Op != coordcases.OpLookup:
		return 0, fmt.Errorf("we say %s, vLLM says %s", text, theirs)
	}
	if keys := c.Keys(); !reflect.DeepEqual(keys, r.Keys) {
		return 0, fmt.Errorf("our keys %+v, vLLM's %+v", keys, r.Keys)
	}
	if r.Raised != "" {
		if ours.Hit == 0 || r.Hit != nil && ours.Hit == *r.Hit {
			return Safe, nil
		}
		return 0, fmt.Errorf("we say %s, vLLM raised: %s", text, theirs)
	}
	tails := make([][2]int, len(ours.Tails))
	for i, t := range ours.Tails {
		tails[i] = [2]int{t.Group, t.Tokens}
	}
	if ours.Hit == 0 && *r.Hit > 0 && c.Loadable(*r.Hit, r.Tails) != nil {
		return Safe, nil //nolint:nilerr // the error says that vLLM's hit can't be loaded: ours is the safe answer
	}
	if ours.Hit != *r.Hit || !slices.Equal(tails, r.Tails) {
		return 0, fmt.Errorf("we say %s, vLLM says hit %d, tails %v", text, *r.Hit, r.Tails)
	}
	return Equal, nil
}
