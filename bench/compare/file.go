package compare

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
)

// Write puts the report into a file, whole or not at all.
func (r *Report) Write(path string) error {
	encoded, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("encoding the report: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	work := path + ".tmp"
	if err := os.WriteFile(work, append(encoded, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	if err := os.Rename(work, path); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// Resume returns the pairs of an earlier report, none if there is no such file. The
// runs' extent may differ, what they measure may not.
func Resume(path string, options Options) ([]Pair, error) {
	encoded, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the report to go on with: %w", err)
	}
	var earlier Report
	if err := json.Unmarshal(encoded, &earlier); err != nil {
		return nil, fmt.Errorf("decoding the report %s: %w", path, err)
	}
	if !reflect.DeepEqual(earlier.Options.substance(), options.substance()) {
		return nil, fmt.Errorf("%s was measured with %+v, not with %+v: give the same options, or another --out", path, earlier.Options, options)
	}
	for i, pair := range earlier.Pairs {
		if err := pair.check(options.With); err != nil {
			return nil, fmt.Errorf("the report %s, pair %d: %w", path, i, err)
		}
	}
	return earlier.Pairs, nil
}

// check refuses a pair that no figure could be computed of.
func (p Pair) check(systems []string) error {
	for _, system := range systems {
		seen, ok := p.Seen[system]
		if !ok && (p.Part != PartWarm || system != None) {
			return fmt.Errorf("%s is missing", system)
		}
		if p.Part != PartWarm && len(seen.TTFTMs) == 0 || p.Part == PartOverlap && len(seen.TTFTMs) != len(p.Seen[systems[0]].TTFTMs) {
			return fmt.Errorf("%s has %d times", system, len(seen.TTFTMs))
		}
	}
	return nil
}

// substance is what pairs of two runs must have in common to be counted together.
func (o Options) substance() Options {
	return Options{With: o.With, Arrivals: o.Arrivals, Load: o.Load, OutputTokens: o.OutputTokens, KVGiB: o.KVGiB, StoreBytes: o.StoreBytes, Seed: o.Seed, Prompts: o.Prompts}
}
