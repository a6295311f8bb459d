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

	"gopkg.in/yaml.v3"
)

// asked is a query of the dashboard or of an alert.
type asked struct {
	where      string
	expression string
	legend     string // of a panel
}

// watched reads every query of the dashboard and the alerts, for all instances
// and any interval.
func watched(t *testing.T) (all []asked) {
	t.Helper()
	var board struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr, LegendFormat string }
		}
		Templating struct{ List []struct{ Query any } }
	}
	var alerts struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	for name, into := range map[string]func([]byte) error{
		"grafana/mooncake-sidecar.json": func(data []byte) error { return json.Unmarshal(data, &board) },
		"prometheus/alerts.yml":         func(data []byte) error { return yaml.Unmarshal(data, &alerts) },
	} {
		data, err := os.ReadFile(filepath.Join("..", "..", "deploy", name))
		if err == nil {
			err = into(data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	variables := strings.NewReplacer("$instance", ".*", "$__rate_interval", "1m")
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			all = append(all, asked{"panel " + p.Title, variables.Replace(target.Expr), target.LegendFormat})
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %s asks for nothing", p.Title)
		}
	}
	for _, v := range board.Templating.List {
		if found := labelValues.FindStringSubmatch(fmt.Sprint(v.Query)); found != nil {
			all = append(all, asked{"variable", "sum by (" + found[2] + ") (" + found[1] + ")", ""})
		}
	}
	for _, g := range alerts.Groups {
		for _, rule := range g.Rules {
			all = append(all, asked{"alert " + rule.Alert, rule.Expr, ""})
		}
	}
	return all
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
	has := func(expression string) bool {
		return slices.ContainsFunc(servers, func(s string) bool { n, _ := instant(t, s, expression); return n > 0 })
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
			if !slices.ContainsFunc(uses, func(use []string) bool {
				return has(use[1] + "{" + strings.TrimPrefix(strings.TrimSpace(use[2])+",", ",") + label + `!=""}`)
			}) {
				t.Errorf("%s groups by %s, which no series of it has: %s", q.where, label, q.expression)
			}
		}
		for _, label := range legendLabel.FindAllStringSubmatch(q.legend, -1) {
			if len(labels) > 0 && !labels[label[1]] {
				t.Errorf("%s has %s in its legend, and does not group by it", q.where, label[0])
			}
		}
	}
	if len(queries) < 40 || len(known) < 40 {
		t.Errorf("only %d queries of %d selectors", len(queries), len(known))
	}
}
