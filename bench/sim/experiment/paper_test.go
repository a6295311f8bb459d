package experiment

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// figures are what was read off the paper's drawings, in the file beside the folder of
// traces.
type figures struct {
	Fig8      [][2]float64            `json:"fig8"`
	Fig9      map[string][][2]float64 `json:"fig9"`
	Fig10Hit  [][2]float64            `json:"fig10_hit"`
	Fig10Time [][2]float64            `json:"fig10_time"`
	Fig12     map[string][][2]float64 `json:"fig12_4x200"`
	Fig13     [][][2]float64          `json:"fig13a_ttft"`
	Recompute float64                 `json:"fig13a_recompute"`
	Fig14None map[string][][]any      `json:"fig14a"`
	Fig14Most map[string][][]any      `json:"fig14b"`
	Fig15     [][]float64             `json:"fig15a"`
	Fig15TTFT []float64               `json:"fig15b_ttft"`
	Fig15TBT  []float64               `json:"fig15b_tbt"`
}

// TestPaperFigures: what stands beside our values is what was read off.
func TestPaperFigures(t *testing.T) {
	dir := os.Getenv(tracesVar)
	if dir == "" {
		t.Skipf("%s is not set: the figures are beside the traces", tracesVar)
	}
	text, err := os.ReadFile(filepath.Join(dir, "..", "oracle", "paper_figures.json"))
	if err != nil {
		t.Fatal(err)
	}
	var f figures
	if err := json.Unmarshal(text, &f); err != nil {
		t.Fatal(err)
	}
	same := func(what string, got, want []float64, unit float64) {
		t.Helper()
		if len(got) == 0 || len(got) > len(want) {
			t.Fatalf("%s: %d values of %d", what, len(got), len(want))
		}
		for i := range got {
			near(t, what, got[i], want[i]*unit, .00051)
		}
	}
	ys := func(points [][2]float64) (y []float64) {
		for _, p := range points {
			y = append(y, p[1])
		}
		return y
	}
	last := func(bars [][]any) (y []float64) {
		for _, b := range bars {
			v, ok := b[len(b)-1].(float64)
			if !ok {
				t.Fatalf("a bar %v", b)
			}
			y = append(y, v)
		}
		return y
	}
	for _, name := range []string{conversation, synthetic} {
		_, share := fig9(name)
		same("Fig. 9, "+name, share, ys(f.Fig9[name]), 1)
	}
	// Bars stand in the order of the traces: conversation, one more, synthetic.
	localHit, globalHit := fig10Hit()
	same("Fig. 10, hits", []float64{localHit[conversation], globalHit[conversation], localHit[synthetic], globalHit[synthetic]}, pick(ys(f.Fig10Hit), 0, 1, 4, 5), .01)
	localTime, globalTime := fig10Time()
	same("Fig. 10, time", []float64{localTime[conversation], globalTime[conversation], localTime[synthetic], globalTime[synthetic]}, pick(ys(f.Fig10Time), 0, 1, 4, 5), 1)
	none, most := fig14Prefill()
	same("Fig. 14, prefill", none, last(f.Fig14None["prefill"]), 1)
	same("Fig. 14, prefill, cached", most, last(f.Fig14Most["prefill"]), 1)
	none, most = fig14Decode()
	same("Fig. 14, decode", none, last(f.Fig14None["decode"]), 1)
	same("Fig. 14, decode, cached", most, last(f.Fig14Most["decode"]), 1)
	_, ttft, recompute := fig13()
	same("Fig. 13", append(slices.Clone(ttft), recompute), append(ys(f.Fig13[0])[:len(ttft)], f.Recompute), 1)
	_, mooncake, tcp, gloo := fig12()
	same("Fig. 12, Mooncake", mooncake, ys(f.Fig12["(0.12, 0.47, 0.71)"]), 1)
	same("Fig. 12, TCP", tcp, ys(f.Fig12["(1.0, 0.5, 0.05)"]), 1)
	same("Fig. 12, Gloo", gloo, ys(f.Fig12["(0.17, 0.63, 0.17)"]), 1)
	ttft, tbt, effective := fig15()
	same("Fig. 15, TTFT", ttft, f.Fig15TTFT, 1)
	same("Fig. 15, TBT", tbt, f.Fig15TBT, .001)
	same("Fig. 15, effective", effective, f.Fig15[0], .01)
	// Fig. 8 has four bars a trace, of the systems that the paper compares: the first is
	// Mooncake's and the second has no cache.
	same("Fig. 8, Mooncake", []float64{fig8Mooncake()[conversation], fig8Mooncake()[synthetic]}, pick(ys(f.Fig8), 0, 8), 1)
	same("Fig. 8, no cache", []float64{fig8NoCache()[conversation], fig8NoCache()[synthetic]}, pick(ys(f.Fig8), 1, 9), 1)
}

func pick(values []float64, at ...int) (out []float64) {
	for _, i := range at {
		out = append(out, values[i])
	}
	return out
}
