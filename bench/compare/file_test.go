package compare

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestResumeRefuses(t *testing.T) {
	options := Options{With: []string{None, Ours}, Prompts: 1}
	cold, overlap := Cell{PartCold, "kv2k", 300}, Cell{PartOverlap, "kv2k", 300}
	one := Seen{TTFTMs: []float64{1}}
	for name, test := range map[string]struct {
		pairs []Pair
		want  string
	}{
		"a system is missing": {[]Pair{{Cell: cold, Seen: map[string]Seen{None: one}}}, "pair 0: ours is missing"},
		"no time":             {[]Pair{{Cell: cold, Seen: map[string]Seen{None: one, Ours: {}}}}, "ours has 0 times"},
		"too few times":       {[]Pair{{Cell: overlap, Seen: map[string]Seen{None: {TTFTMs: []float64{1, 2}}, Ours: one}}}, "ours has 1 times"},
		"nothing":             {[]Pair{{Cell: cold, Seen: map[string]Seen{None: one, Ours: one}}, {}}, "pair 1"},
	} {
		path := filepath.Join(t.TempDir(), "report.json")
		if err := (&Report{Options: options, Pairs: test.pairs}).Write(path); err != nil {
			t.Fatal(err)
		}
		if _, err := Resume(path, options); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, not %q", name, err, test.want)
		}
	}
	path := filepath.Join(t.TempDir(), "report.json")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Resume(path, options); err == nil || !strings.Contains(err.Error(), "decoding the report") {
		t.Errorf("malformed: error %v", err)
	}
}
