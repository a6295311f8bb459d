package datapath

import (
	"strings"
	"testing"
)

func TestSizesAreNamedByTheirParts(t *testing.T) {
	for only, want := range map[string]int{"": len(geometries), "537MB": 2, "537MB/b16": 1, "b16/l32": 2, "537MB/b16/l32": 1, "537": 0, "537MB/b17": 0} {
		got := 0
		for _, g := range geometries {
			if wanted(only, g) {
				got++
			}
		}
		if got != want {
			t.Errorf("%q names %d sizes, want %d", only, got, want)
		}
	}
}

func TestASizeThatIsNotThereIsRefused(t *testing.T) {
	_, err := Run(t.Context(), &Options{Rounds: 1, Warm: 1, Only: "1MB"})
	if err == nil || !strings.Contains(err.Error(), `no size is "1MB"`) || !strings.Contains(err.Error(), "34MB/b128/l32") {
		t.Fatalf("got %v", err)
	}
}
