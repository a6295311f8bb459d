package enginehash

import (
	"fmt"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// Checker finds out from an engine's events how it makes its hashes, and whether that is
// what its operator says. Who has another seed or algorithm than he thinks shares no store
// with other engines, and is found by nobody's hashes: without a word, if nobody looks.
// It is not safe for concurrent use.
type Checker struct {
	declared   contract.HashProfile
	candidates []candidate
	// found is the candidate that made what was looked at last, -1 for none of them.
	found int
	// looked counts the prompts that were looked at since the verdict has changed.
	looked int
}

// candidate is a profile that an engine may have.
type candidate struct {
	profile contract.HashProfile
	hasher  *Hasher
}

// enough prompts with the same verdict are not looked into any further.
const enough = 8

// NewChecker makes a checker. declared is what is said of the engine; of an empty field
// nothing is said, but for the seed beside an algorithm, which is unset then.
func NewChecker(declared contract.HashProfile) *Checker {
	c := &Checker{declared: declared, found: -1}
	seeds := []string{"", "0"}
	if declared.Seed != "" && declared.Seed != "0" {
		seeds = append(seeds, declared.Seed)
	}
	for _, algorithm := range Algorithms() {
		for _, seed := range seeds {
			profile := contract.HashProfile{Algorithm: algorithm, Seed: seed}
			if hasher, err := New(profile); err == nil { // else nobody can have it for certain
				c.candidates = append(c.candidates, candidate{profile, hasher})
			}
		}
	}
	return c
}

// Reset begins anew: it is another engine.
func (c *Checker) Reset() { c.found, c.looked = -1, 0 }

// Look looks at an event, if it tells of a prompt's beginning and all that went into the
// hashes.
func (c *Checker) Look(e *kvevents.BlockStored) {
	n := len(e.Hashes)
	if c.looked >= enough || e.Parent != nil || n == 0 || e.BlockSize <= 0 || e.BlockSize > MaxBlockTokens || len(e.TokenIDs) != n*e.BlockSize || e.LoraID != nil || e.LoraName != "" {
		return
	}
	salt, ok := saltOf(e)
	if !ok {
		return
	}
	found := -1
	for i := range c.candidates {
		hash, err := c.candidates[i].hasher.Next(nil, e.TokenIDs[:e.BlockSize], salt)
		if err == nil && kvevents.HashOf(hash) == e.Hashes[0] {
			found = i
			break
		}
	}
	if found != c.found {
		c.looked = 0
	}
	c.found = found
	c.looked++
}

// saltOf returns the salt of an event's first block, false when something else went into
// its hash.
func saltOf(e *kvevents.BlockStored) (salt string, ok bool) {
	if !e.HasExtraKeys {
		return "", true
	}
	entries, ok := kvevents.SplitExtraKeys(e.ExtraKeys, nil)
	if !ok || len(entries) == 0 {
		return "", false
	}
	values := 0
	kvevents.WalkExtraKeys(entries[0], func(_, text []byte) {
		values++
		salt = string(text)
		ok = ok && text != nil
	})
	return salt, ok && values <= 1
}

// Unknown is what Hashing says of an engine with another seed, or an algorithm of its own.
const Unknown = "unknown"

// Hashing says how the engine makes its hashes, "" as long as it has told of none.
func (c *Checker) Hashing() string {
	switch {
	case c.looked == 0:
		return ""
	case c.found < 0:
		return Unknown
	}
	return describe(c.candidates[c.found].profile)
}

// Fault says what is wrong with the hashes, "" for nothing that is known.
func (c *Checker) Fault() string {
	switch {
	case c.looked == 0 || c.declared.Seed == RandomSeed || c.found < 0 && c.declared == (contract.HashProfile{}):
		return ""
	case c.found < 0:
		return "the engine's hashes are not those of " + describe(c.declared)
	case c.declared.Algorithm != "" && c.declared != c.candidates[c.found].profile, c.declared.Algorithm == "" && c.declared.Seed != "" && c.declared.Seed != c.candidates[c.found].profile.Seed:
		return fmt.Sprintf("the engine's hashes are %s, not %s", c.Hashing(), describe(c.declared))
	}
	return ""
}

func describe(p contract.HashProfile) string {
	algorithm, seed := p.Algorithm, "seed "+p.Seed
	if algorithm == "" {
		algorithm = "any algorithm"
	}
	if p.Seed == "" {
		seed = "seed unset"
	}
	return algorithm + ", " + seed
}
