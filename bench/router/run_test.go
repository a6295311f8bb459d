package router

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// TestRun: a short run measures each kind of prompts both ways.
func TestRun(t *testing.T) {
	result, err := Run(t.Context(), &Options{Rate: 100, Each: 300 * time.Millisecond, Engines: 2, PromptTokens: 256, Progress: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Kinds) != 3 {
		t.Fatalf("%+v", result)
	}
	for _, k := range result.Kinds {
		if k.Pairs != 30 || k.Straight.Median <= 0 || k.Through.Median <= k.Straight.Median/10 || k.Added.Low > k.Added.High {
			t.Errorf("%+v", k)
		}
	}
	var table, object bytes.Buffer
	result.Print(&table)
	if err := result.JSON(&object); err != nil || !strings.Contains(table.String(), IDs) || !strings.Contains(object.String(), `"added_median"`) {
		t.Errorf("%s%s%v", table.String(), object.String(), err)
	}
}
