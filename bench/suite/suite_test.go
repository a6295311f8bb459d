package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func itoa(n int) string { return strconv.Itoa(n) }

func testSetting(t *testing.T) *Setting {
	dir := t.TempDir()
	return &Setting{Budget: Quick, Root: dir, Out: filepath.Join(dir, "out"), Binaries: "/bin", Bench: "/bench", Python: filepath.Join(dir, "no-python")}
}

func shell(name, script string, read func(s *Setting) (*Found, error)) Part {
	return Part{
		Name: name, Title: "Title <of> " + name, Quick: time.Minute, Full: time.Minute,
		Command: func(*Setting) []string { return []string{"sh", "-c", script} }, Read: read,
	}
}

// TestRun: each way in which a part may end, and a report of all.
func TestRun(t *testing.T) {
	s := testSetting(t)
	good := shell("good", "echo 12.5; echo half way >&2", func(s *Setting) (*Found, error) {
		text, err := readFile(s.Output("good"))
		if err != nil {
			return nil, err
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		kept, lost := Figure{Name: "kept", Unit: "ms", Value: v, Spread: &Spread{12, 13, extremes}, Samples: 3}, Figure{Name: "lost", Value: v}
		kept.atMost(20)
		lost.atMost(10)
		return &Found{Figures: []Figure{kept, lost}}, err
	})
	bad := shell("bad", "echo last words >&2; exit 1", nil)
	garbled := shell("garbled", "echo x", func(s *Setting) (*Found, error) { return readHooks(s.Output("garbled")) })
	absent := shell("absent", "exit 1", nil)
	absent.Needs = []Need{needPython}
	long := shell("long", "exit 1", nil)
	long.FullOnly = true
	late := shell("late", "exit 1", nil)
	late.Quick = 24 * time.Hour // less than a quarter of it is left
	var said []string
	r, err := Run(t.Context(), s, []Part{good, bad, garbled, absent, long, late}, func(line string) { said = append(said, line) })
	if err != nil {
		t.Fatal(err)
	}
	var states []State
	for i := range r.Entries {
		states = append(states, r.Entries[i].State)
	}
	if want := []State{Done, Failed, Failed, NotHere, LeftOut, NoTime}; !slices.Equal(states, want) {
		t.Fatalf("states %q, not %q\n%s", states, want, strings.Join(said, "\n"))
	}
	if met, missed := r.targets(); met != 1 || missed != 1 || r.failed() != 3 || r.Whole() {
		t.Errorf("%d met, %d missed, %d failed, whole %t", met, missed, r.failed(), r.Whole())
	}
	var text, encoded, html bytes.Buffer
	if err := errors.Join(r.WriteText(&text), r.WriteJSON(&encoded), r.WriteHTML(&html)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"MISSED  good: lost: 12.5, <= 10: MISSED", "1 targets met, 1 missed", "not possible here"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, &text)
		}
	}
	var back Report
	if err := json.Unmarshal(encoded.Bytes(), &back); err != nil || len(back.Entries) != 6 || back.Entries[0].Figures[0].Value != 12.5 || back.Environment.CPUs < 1 {
		t.Errorf("%+v, %v", back, err)
	}
	page := html.String()
	for _, want := range []string{"Title &lt;of&gt; good", "12.5 ms", "&lt;= 10: MISSED", "last words", "run make setup", `<h2>Missed</h2>`} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in the page", want)
		}
	}
	for _, bad := range []string{"http:", "https:", "<script", "src="} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if log := contents(t, s.File("good.log")); log != "half way\n" {
		t.Errorf("the log is %q", log)
	}
}

func TestBeside(t *testing.T) {
	r := &Report{Environment: Environment{}, Entries: []Entry{{State: NotHere}, {State: Failed, Load: &Load{OtherCores: .05}}}}
	if words := r.beside(); words != "" {
		t.Errorf("a quiet machine: %s", words)
	}
	r.Entries[1].Load.OtherCores = 1.5
	var text, html bytes.Buffer
	if err := errors.Join(r.WriteText(&text), r.WriteHTML(&html)); err != nil || !strings.Contains(text.String(), "up to 1.5 of") || !strings.Contains(html.String(), "up to 1.5 of") {
		t.Errorf("%v: %s", err, &text)
	}
}

func TestRunStopped(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	first := shell("first", "echo x >&2; sleep 1000", nil)
	r, err := Run(ctx, testSetting(t), []Part{first, shell("second", "exit 0", nil)}, func(line string) {
		if strings.HasSuffix(line, "  x") {
			stop()
		}
	})
	if err != nil || r.Entries[0].State != Stopped || r.Entries[1].State != Stopped || r.WriteHTML(&bytes.Buffer{}) != nil {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestJudged(t *testing.T) {
	for _, test := range []struct {
		value, limit float64
		atLeast      bool
		spread       *Spread
		want         string
	}{
		{5, 10, false, nil, "<= 10: met"},
		{10, 10, false, &Spread{9, 10, extremes}, "<= 10: met"},
		{11, 10, false, &Spread{10.5, 12, extremes}, "<= 10: MISSED"},
		{11, 10, false, &Spread{9, 12, extremes}, "<= 10: MISSED, within the spread"},
		{9, 10, false, &Spread{8, 12, extremes}, "<= 10: met, within the spread"},
		{1, 1, true, nil, ">= 1: met"},
		{.99, 1, true, nil, ">= 1: MISSED"},
		{math.NaN(), 1, true, nil, ">= 1: MISSED"},
		{math.NaN(), 1, false, nil, "<= 1: MISSED"},
	} {
		if got := judged("value", test.value, test.limit, test.atLeast, test.spread); got.String() != test.want {
			t.Errorf("%+v: %s", test, got.String())
		}
	}
	f := Figure{Value: 1, Ratio: &Ratio{Value: .5, To: "x"}}
	f.ratioAtMost(.4)
	if got := f.Targets[0].String(); got != "ratio <= 0.4: MISSED" {
		t.Error(got)
	}
}

// TestAll: every entry can be run in both budgets and is found by its name.
func TestAll(t *testing.T) {
	s := &Setting{Root: "/r", Out: "/o", Binaries: "/b", Bench: "/bench", Python: "/python", Traces: "/t"}
	for i, p := range All() {
		if slices.Index(Names(), p.Name) != i || p.Title == "" || p.Quick <= 0 && !p.FullOnly || p.Full < p.Quick || p.Read == nil {
			t.Errorf("%s: twice, or something is lacking", p.Name)
		}
		for _, s.Budget = range []Budget{Quick, Full} {
			if args := p.Command(s); len(args) < 2 || slices.Contains(args, "") {
				t.Errorf("%s, %s: %q", p.Name, s.Budget, args)
			}
		}
		if p.Quick > quickTotal {
			t.Errorf("%s may take longer than all", p.Name)
		}
	}
	if got, err := Choose([]string{"hooks", "go"}); err != nil || len(got) != 2 || got[0].Name != "hooks" {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := Choose(nil); err != nil || len(got) != len(All()) {
		t.Errorf("%d parts, %v", len(got), err)
	}
	if _, err := Choose([]string{"nothing"}); !errors.Is(err, ErrPart) {
		t.Error(err)
	}
}

func TestNeeds(t *testing.T) {
	s := testSetting(t)
	for name, need := range map[string]Need{"python": needPython, "mooncake": needMooncake, "traces": needTraces, "file": needFile("x", "make x")} {
		if why := need(s); why == "" {
			t.Errorf("%s is there", name)
		}
	}
	s.Traces = s.Root
	for _, name := range []string{"no-python", "mooncake_master", "conversation_trace.jsonl", "synthetic_trace.jsonl", "x"} {
		if err := os.WriteFile(filepath.Join(s.Root, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, need := range map[string]Need{"python": needPython, "mooncake": needMooncake, "traces": needTraces, "file": needFile("x", "make x")} {
		if why := need(s); why != "" {
			t.Errorf("%s: %s", name, why)
		}
	}
}
