package model

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// tolerance to the reference numbers. They come from the same formulas, so that
// rounding alone is left.
const tolerance = 1e-9

type expected struct {
	KVBytes   int64                `json:"kv_bytes_per_token"`
	Eq1       map[string]float64   `json:"eq1_flops"`
	Eq2       map[string]float64   `json:"eq2_min_GBps"`
	GPU       map[string]float64   `json:"T_gpu"`
	Latency   map[string]float64   `json:"T_lat"`
	CPP       map[string]float64   `json:"cpp"`
	Layerwise map[string][]float64 `json:"layerwise"`
	Transfer  map[string]float64   `json:"transfer_s"`
}

// reference reads the small reference in testdata, or the whole one beside the
// folder of traces.
func reference(t *testing.T) expected {
	t.Helper()
	name := filepath.Join("testdata", "expected.json")
	if dir := os.Getenv("MOONCAKE_SIDECAR_TRACES"); dir != "" {
		name = filepath.Join(dir, "..", "oracle", "model_expected.json")
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var e expected
	if err := json.Unmarshal(text, &e); err != nil {
		t.Fatal(err)
	}
	return e
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance*math.Abs(want) {
		t.Errorf("%s: %.12g, want %.12g", what, got, want)
	}
}

func ints(t *testing.T, text string) (out []int) {
	t.Helper()
	for field := range strings.SplitSeq(text, ",") {
		if _, value, ok := strings.Cut(field, "="); ok {
			field = value
		}
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, n)
	}
	return out
}

func TestReference(t *testing.T) {
	e := reference(t)
	c := Default()
	if got := c.Shape.KVBytesPerToken(); got != e.KVBytes {
		t.Errorf("%d bytes of KV cache a token, want %d", got, e.KVBytes)
	}
	compared := 0
	check := func(what string, got, want float64) {
		compared++
		near(t, what, got, want)
	}
	for n, want := range e.Eq1 {
		check("Eq. 1 "+n, c.Shape.PaperFLOPs(ints(t, n)[0]), want)
	}
	check("Eq. 2 A800", c.Shape.MinLoadBytesPerSecond(A800(), 8192)/1e9, e.Eq2["A800_p8192"])
	check("Eq. 2 H800", c.Shape.MinLoadBytesPerSecond(H800(), 8192)/1e9, e.Eq2["H800_p8192"])
	for k, want := range e.GPU {
		x := ints(t, k)
		check("GPU "+k, c.GPU(x[0], x[1]), want)
	}
	for k, want := range e.Latency {
		x := ints(t, k)
		check("latency "+k, c.Latency(x[0], x[1]), want)
	}
	for k, want := range e.CPP {
		x := ints(t, k)
		check("cpp "+k, c.CPP(x[0], x[1], x[2], x[3]), want)
	}
	for k, want := range e.Layerwise {
		x := ints(t, k)
		got := c.Layerwise(x[0], x[1])
		for i, v := range []float64{got.Overlapped, got.Compute, got.Serial} {
			check(fmt.Sprintf("layerwise %s[%d]", k, i), v, want[i])
		}
	}
	for k, want := range e.Transfer {
		tokens, rate, _ := strings.Cut(k, "@")
		gbps, err := strconv.ParseFloat(rate, 64)
		if err != nil {
			t.Fatal(err)
		}
		check("transfer "+k, TransferSeconds(c.Shape, ints(t, tokens)[0], gbps*1e9), want)
	}
	if compared < 30 {
		t.Errorf("only %d numbers compared", compared)
	}
}

// TestPaperTimes: the fit's distance from Fig. 14.
func TestPaperTimes(t *testing.T) {
	c := Default()
	for i, want := range []float64{1.002, 2.056, 4.479, 10.587, 27.512} {
		n := 8192 << i
		if got := c.Latency(n, 0); math.Abs(got/want-1) > 0.02 {
			t.Errorf("%d tokens: %.3f s, the paper's %.3f", n, got, want)
		}
	}
	for i, want := range []float64{.135, .226, .407, .881, 2.328} {
		n := 8192 << i
		if got := c.Latency(n, n*95/100); math.Abs(got/want-1) > 0.04 {
			t.Errorf("%d tokens, 95 %% cached: %.3f s, the paper's %.3f", n, got, want)
		}
	}
}

// TestServiceFactor scales prefill and nothing else.
func TestServiceFactor(t *testing.T) {
	one, slow := Default(), Default()
	slow.ServiceFactor = 1.3
	near(t, "latency", slow.Latency(9000, 4096), 1.3*one.Latency(9000, 4096))
	near(t, "gpu", slow.GPU(9000, 4096), 1.3*one.GPU(9000, 4096))
	near(t, "iteration", slow.Iteration(9, 90000), one.Iteration(9, 90000))
	near(t, "transfer", slow.Transfer(1000), one.Transfer(1000))
}

// TestPipelineBounds: whatever the chunks, a pipeline is no faster than its share
// of the work and no slower than one group plus its hops.
func TestPipelineBounds(t *testing.T) {
	c := Default()
	for _, n := range []int{1, 2047, 2048, 2049, 100_000} {
		for groups := 1; groups <= 8; groups++ {
			for _, chunk := range []int{1000, 2048, 1 << 20} {
				got, alone := c.CPP(n, 0, groups, chunk), c.GPU(n, 0)
				hops := float64(groups) * float64(n) * c.Shape.hiddenBytes() / c.Hardware.NICBytesPerSecond
				if got < alone/float64(groups)*(1-1e-12) || got > alone+hops+1e-12 {
					t.Errorf("n %d, %d groups, chunks of %d: %.6f s, one group %.6f", n, groups, chunk, got, alone)
				}
			}
		}
	}
}
