package daemon

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"
)

// asked is a query of the dashboard or of an alert.
type asked struct {
	where      string
	expression string
	legend     string // of a panel
}

// dashboard is what a dashboard's file says.
type dashboard struct {
	Title, UID string
	Panels     []struct {
		ID          int
		Type, Title string
		GridPos     struct{ H, W, X, Y int }
		Targets     []struct{ Expr, LegendFormat string }
	}
	Templating struct{ List []struct{ Query any } }
}

// alertRules is what a file of alerts says.
type alertRules struct {
	Groups []struct {
		Rules []struct{ Alert, Expr string }
	}
}

// deployed reads all files of a folder of deploy/ whose names end so, by their names.
func deployed[T any](t *testing.T, folder, ends string, decode func([]byte, any) error) map[string]*T {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("..", "..", "deploy", folder, "*"+ends))
	if err != nil || len(names) == 0 {
		t.Fatalf("%d files, %v", len(names), err)
	}
	all := map[string]*T{}
	for _, name := range names {
		data, err := os.ReadFile(name)
		into := new(T)
		if err == nil {
			err = decode(data, into)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all[filepath.Base(name)] = into
	}
	return all
}

func dashboards(t *testing.T) map[string]*dashboard {
	t.Helper()
	return deployed[dashboard](t, "grafana", ".json", json.Unmarshal)
}

func alerts(t *testing.T) map[string]*alertRules {
	t.Helper()
	return deployed[alertRules](t, "prometheus", "alerts.yml", yaml.Unmarshal)
}

// watched reads every query of the dashboards and the alerts, for all instances
// and any interval.
func watched(t *testing.T) (all []asked) {
	t.Helper()
	variables := strings.NewReplacer("$instance", ".*", "$__rate_interval", "1m")
	for name, board := range dashboards(t) {
		for _, p := range board.Panels {
			for _, target := range p.Targets {
				all = append(all, asked{name + ": panel " + p.Title, variables.Replace(target.Expr), target.LegendFormat})
			}
			if p.Type != "row" && len(p.Targets) == 0 {
				t.Errorf("%s: panel %s asks for nothing", name, p.Title)
			}
		}
		for _, v := range board.Templating.List {
			if found := labelValues.FindStringSubmatch(fmt.Sprint(v.Query)); found != nil {
				all = append(all, asked{name + ": variable", "sum by (" + found[2] + ") (" + found[1] + ")", ""})
			}
		}
	}
	for _, file := range alerts(t) {
		for _, g := range file.Groups {
			for _, rule := range g.Rules {
				all = append(all, asked{"alert " + rule.Alert, rule.Expr, ""})
			}
		}
	}
	return all
}

// Dashboards can be loaded side by side, and no panel of one lies on another.
func TestDashboards(t *testing.T) {
	const width = 24 // of Grafana's grid
	names := map[string]string{}
	for file, board := range dashboards(t) {
		for _, name := range []string{board.Title, board.UID} {
			if other := names[name]; name == "" || other != "" && other != file {
				t.Errorf("%s and %s are both %q", file, other, name)
			}
			names[name] = file
		}
		taken, ids := map[[2]int]string{}, map[int]bool{}
		for _, p := range board.Panels {
			if ids[p.ID] {
				t.Errorf("%s: two panels have the number %d", file, p.ID)
			}
			ids[p.ID] = true
			g := p.GridPos
			if g.W < 1 || g.H < 1 || g.X < 0 || g.X+g.W > width {
				t.Errorf("%s: panel %s is %d wide at %d", file, p.Title, g.W, g.X)
			}
			for x := g.X; x < g.X+g.W; x++ {
				for y := g.Y; y < g.Y+g.H; y++ {
					if other, there := taken[[2]int{x, y}]; there {
						t.Fatalf("%s: panels %s and %s lie on each other", file, other, p.Title)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
		}
	}
}

var (
	labelValues = regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`)
	selector    = regexp.MustCompile(`\b((?:mooncake_sidecar|process|go)_\w+)(?:\{([^}]*)\})?`)
	grouping    = regexp.MustCompile(`\bby \(([^)]*)\)`)
	legendLabel = regexp.MustCompile(`\{\{(\w+)\}\}`)
)

// instant asks a Prometheus and returns its complaint, and how many series the
// answer has.
func instant(t *testing.T, address, expression string) (series int, complaint string) {
	t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	reply, err := (&http.Client{Transport: transport, Timeout: patience}).Get("http://" + address + "/api/v1/query?query=" + url.QueryEscape(expression))
	if err != nil {
		return 0, err.Error()
	}
	defer reply.Body.Close()
	var answer struct {
		Error string
		Data  struct{ Result []any }
	}
	if err := json.NewDecoder(reply.Body).Decode(&answer); err != nil {
		return 0, err.Error()
	}
	return len(answer.Data.Result), answer.Error
}

// checkWatched evaluates every query of the dashboard and the alerts at servers
// that scrape the daemons, and fails at one that does not parse or that asks for
// series or labels which none of the servers has: such a panel would be empty
// and such an alert silent for ever.
func checkWatched(t *testing.T, servers ...string) {
	t.Helper()
	// A scrape that takes too long leaves its daemon without series until the next one.
	has := func(expressions ...string) bool {
		for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
			for _, e := range expressions {
				if slices.ContainsFunc(servers, func(s string) bool { n, _ := instant(t, s, e); return n > 0 }) {
					return true
				}
			}
			if time.Now().After(deadline) {
				return false
			}
		}
	}
	known := map[string]bool{}
	queries := watched(t)
	for _, q := range queries {
		if _, complaint := instant(t, servers[0], q.expression); complaint != "" {
			t.Errorf("%s: %s: %s", q.where, complaint, q.expression)
			continue
		}
		uses := selector.FindAllStringSubmatch(q.expression, -1)
		if len(uses) == 0 {
			t.Errorf("%s asks for no series of ours: %s", q.where, q.expression)
		}
		for _, use := range uses {
			if known[use[0]] {
				continue
			}
			known[use[0]] = true
			if !has(use[0]) {
				t.Errorf("%s asks for %s, which no daemon has", q.where, use[0])
			}
		}
		labels := map[string]bool{}
		for _, group := range grouping.FindAllStringSubmatch(q.expression, -1) {
			for label := range strings.SplitSeq(group[1], ",") {
				labels[strings.TrimSpace(label)] = true
			}
		}
		for label := range labels {
			var series []string
			for _, use := range uses {
				series = append(series, use[1]+"{"+strings.TrimPrefix(strings.TrimSpace(use[2])+",", ",")+label+`!=""}`)
			}
			if !has(series...) {
				t.Errorf("%s groups by %s, which no series of it has: %s", q.where, label, q.expression)
			}
		}
		for _, label := range legendLabel.FindAllStringSubmatch(q.legend, -1) {
			if len(labels) > 0 && !labels[label[1]] {
				t.Errorf("%s has %s in its legend, and does not group by it", q.where, label[0])
			}
		}
	}
	if len(queries) < 120 || len(known) < 100 {
		t.Errorf("only %d queries of %d selectors", len(queries), len(known))
	}
}
