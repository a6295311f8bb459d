package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/replay"
	"github.com/mooncake-sidecar/sidecar/bench/replay/client"
	"github.com/mooncake-sidecar/sidecar/bench/replay/record"
	"github.com/mooncake-sidecar/sidecar/bench/trace"
)

// sample has four answered requests (TTFT 100 to 400 ms), a failed one, a fault
// and a skipped one.
func sample(t *testing.T) *Report {
	t.Helper()
	rec := record.NewRecorder(record.SLO{TTFT: 250 * time.Millisecond, TBT: 100 * time.Millisecond})
	for i := 1; i <= 4; i++ {
		due := time.Duration(i) * time.Second
		first := due + time.Duration(i)*100*time.Millisecond
		var gaps record.Gaps
		gaps.Add(first, 1)
		gaps.Add(first+20*time.Millisecond, 1)
		rec.Add(&record.Outcome{Line: i, PromptTokens: 100, WantTokens: 2, OutputTokens: 2, CachedTokens: 16 * i, Must: 16 * i, May: 16 * i, Due: due, Sent: due, First: first, End: first + 20*time.Millisecond}, &gaps)
	}
	rec.Add(&record.Outcome{Line: 5, CachedTokens: client.Unknown, Due: time.Second, Sent: time.Second, First: record.Never, End: time.Second, Err: &client.Error{Kind: client.ServerError, Status: 500, Err: errors.New("<script>&")}}, &record.Gaps{})
	outcomes := rec.Outcomes()
	summary, err := rec.Summary()
	if err != nil {
		t.Fatal(err)
	}
	result := &replay.Result{Outcomes: outcomes, Summary: summary, InOrder: 160, Skipped: []replay.Skipped{{Line: 7, Why: "too long"}}}
	_, faults, err := trace.ReadAll(strings.NewReader(`{"timestamp": 5`), "t.jsonl", 0)
	if err != nil || len(faults) != 1 {
		t.Fatal(faults, err)
	}
	return New(Setup{Trace: "t<b>.jsonl", Model: "m", Loop: "open", Speed: 2, Seed: 1}, result, faults, nil)
}

func TestWhole(t *testing.T) {
	if sample(t).Whole() {
		t.Error("a failed request, and whole")
	}
	whole := &Report{Summary: &record.Summary{}, FaultsBy: []record.Count{{Name: string(trace.UnknownField), Count: 3}}}
	if !whole.Whole() {
		t.Error("an ignored field makes a replay incomplete")
	}
	for i, spoil := range []func(r *Report){
		func(r *Report) { r.Ended = "x" }, func(r *Report) { r.TraceError = "x" }, func(r *Report) { r.NotSent = 1 }, func(r *Report) { r.SkippedN = 1 },
		func(r *Report) { r.Summary.Failed = 1 }, func(r *Report) { r.FaultsBy[0].Name = string(trace.Truncated) },
	} {
		r := &Report{Summary: &record.Summary{}, FaultsBy: []record.Count{{Name: string(trace.UnknownField), Count: 3}}}
		if spoil(r); r.Whole() {
			t.Error("spoilt, and whole:", i)
		}
	}
}

func TestJSON(t *testing.T) {
	var out bytes.Buffer
	if err := sample(t).WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	var back struct {
		Failures []Failure      `json:"failures"`
		FaultsBy []record.Count `json:"trace_faults_by"`
		Summary  struct {
			Answered int `json:"answered"`
			TTFT     struct {
				P50 float64 `json:"p50_ms"`
			} `json:"ttft"`
			Goodput struct {
				Share float64 `json:"share"`
			} `json:"goodput"`
			Cached struct {
				Tokens, Must int64
			} `json:"cached"`
		} `json:"summary"`
	}
	if err := json.Unmarshal(out.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if s := back.Summary; s.Answered != 4 || math.Abs(s.TTFT.P50-200) > 1 || s.Goodput.Share != .4 || s.Cached.Tokens != 160 || s.Cached.Must != 160 {
		t.Errorf("%+v", s)
	}
	if len(back.Failures) != 1 || back.Failures[0].Line != 5 || back.Failures[0].Kind != "server error" || len(back.FaultsBy) != 1 || back.FaultsBy[0] != (record.Count{Name: "truncated line", Count: 1}) {
		t.Errorf("%+v", back)
	}
}

func TestCSVAndBaseline(t *testing.T) {
	var out bytes.Buffer
	r := sample(t)
	if err := r.WriteCSV(&out); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil || len(rows) != 6 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	if got := strings.Join(rows[2], ","); got != "2,2000.000,2000.000,2200.000,2220.000,200.000,20.000,20.000,100,2,2,32,32,32,0," {
		t.Errorf("row 2: %s", got)
	}
	if got := strings.Join(rows[5], ","); got != "5,1000.000,1000.000,,1000.000,,0.000,0.000,0,0,0,,0,0,0,server error" {
		t.Errorf("row 5: %s", got)
	}
	b, err := ReadBaseline(strings.NewReader(text))
	if err != nil || len(b) != 4 || b[3] != 300 {
		t.Fatalf("%v, %v", b, err)
	}
	all, err := ReadRequests(strings.NewReader(text))
	if err != nil || len(all) != 5 || all[2] != (Request{Line: 3, TTFTms: 300, CachedTokens: 48, MustTokens: 48}) {
		t.Errorf("%+v, %v", all, err)
	} else if q := all[4]; !q.Failed || q.CachedTokens != client.Unknown || !math.IsNaN(q.TTFTms) {
		t.Errorf("the failed request: %+v", q)
	}
	for line := range b {
		b[line] *= 2
	}
	r.Compare("other.csv", b)
	if v := r.Versus; v.Pairs != 4 || v.MeanRatio.Value != .5 || v.MedianRatio.Value != .5 || v.MeanRatio.Low != .5 || v.MeanRatio.High != .5 {
		t.Errorf("%+v %+v", v, v.MeanRatio)
	}
	r.Compare("none.csv", Baseline{99: 1})
	if r.Versus.Pairs != 0 || r.Versus.MeanRatio != nil {
		t.Errorf("%+v", r.Versus)
	}
	if err := r.WriteJSON(io.Discard); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "a,b\n", text[:20], strings.Replace(text, "\n3,", "\nx,", 1), strings.Replace(text, ",300.000,", ",NaN,", 1), strings.Replace(text, ",300.000,", ",-1,", 1), strings.Replace(text, ",48,48,", ",x,48,", 1), strings.Replace(text, ",48,48,", ",48,-2,", 1), text + "1,2\n"} {
		if _, err := ReadBaseline(strings.NewReader(bad)); !errors.Is(err, ErrBaseline) {
			t.Errorf("%.40q: %v", bad, err)
		}
	}
}

func FuzzBaseline(f *testing.F) {
	f.Add(strings.Join(columns(), ",") + "\n1,0,0,5,6,5.000,0,0,1,1,1,0,0,0,0,\n")
	f.Fuzz(func(t *testing.T, text string) {
		b, err := ReadBaseline(strings.NewReader(text))
		for line, ttft := range b {
			if err != nil || line < 1 || !(ttft >= 0) || math.IsInf(ttft, 0) {
				t.Fatalf("line %d: %g, %v", line, ttft, err)
			}
		}
	})
}

func TestText(t *testing.T) {
	var out bytes.Buffer
	if err := sample(t).WriteText(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"4 of 5 requests", "goodput: 40.0 %", "4 of them had as many as expected", "trace: truncated line: 1\n  t.jsonl:1: ", "failed: server error: 1\n  line 5: ", "not sent: 1\n  line 7: too long"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

func TestHTML(t *testing.T) {
	for name, r := range map[string]*Report{"sample": sample(t), "nothing": New(Setup{}, &replay.Result{Summary: &record.Summary{}}, nil, nil)} {
		var out bytes.Buffer
		if err := r.WriteHTML(&out); err != nil {
			t.Fatal(err)
		}
		page := strings.ReplaceAll(out.String(), `xmlns="http://www.w3.org/2000/svg"`, "")
		for _, bad := range []string{"<script", "http://", "https://", "NaN", "Inf", "<b>", "url("} {
			if strings.Contains(page, bad) {
				t.Errorf("%s: %q is in the page", name, bad)
			}
		}
		if n := strings.Count(page, "<svg"); n != 5 {
			t.Errorf("%s: %d plots", name, n)
		}
		if name == "sample" && (!strings.Contains(page, "What went wrong") || !strings.Contains(page, "&lt;script&gt;") || !strings.Contains(page, "t&lt;b&gt;.jsonl")) {
			t.Errorf("the faults are not in\n%s", page)
		}
	}
}

func TestThin(t *testing.T) {
	points := make(points, 10*maxPoints)
	for i := range points {
		points[i][0] = float64(i)
	}
	kept := thin(points)
	if len(kept) != maxPoints || kept[0] != points[0] || kept[maxPoints-1] != points[len(points)-1] {
		t.Errorf("%d kept, %v to %v", len(kept), kept[0], kept[len(kept)-1])
	}
}
