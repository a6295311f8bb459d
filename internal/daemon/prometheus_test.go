package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// prometheusTool finds a program of Prometheus, which scripts/prometheus.sh gets.
// Who has got it says where by MOONCAKE_SIDECAR_PROMETHEUS: then nothing is skipped.
func prometheusTool(t *testing.T, name string) string {
	t.Helper()
	if dir := os.Getenv("MOONCAKE_SIDECAR_PROMETHEUS"); dir != "" {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("MOONCAKE_SIDECAR_PROMETHEUS: %v", err)
		}
		return path
	}
	if path, err := filepath.Abs(filepath.Join("..", "..", "build", "tools", "prometheus", "usr", "bin", name)); err == nil {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("no %s; scripts/prometheus.sh gets it", name)
	}
	return path
}

// freeAddress returns an address that nobody listens on just now. Its port is none of
// those that the kernel gives to whoever asks for any: who listens there begins later.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 1000 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

// prometheus runs a server with features that scrapes the addresses, and returns
// its own.
func prometheus(t *testing.T, features string, targets ...string) string {
	t.Helper()
	dir, address := t.TempDir(), freeAddress(t)
	settings := fmt.Sprintf("global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n  - {job_name: mooncake, static_configs: [{targets: [%s]}]}\n", strings.Join(targets, ", "))
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	server := exec.Command(prometheusTool(t, "prometheus"), "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--enable-feature="+features, "--log.level=warn")
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait() // it was killed
		if t.Failed() {
			t.Logf("prometheus said:\n%s", &log)
		}
	})
	return address
}

// query returns the first value of a PromQL query, "" for none.
func query(t *testing.T, address, expression string) string {
	t.Helper()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	reply, err := (&http.Client{Transport: transport, Timeout: patience}).Get("http://" + address + "/api/v1/query?query=" + url.QueryEscape(expression))
	if err != nil {
		return "" // it is starting
	}
	defer reply.Body.Close()
	var answer struct {
		Data struct{ Result []struct{ Value [2]any } }
	}
	if err := json.NewDecoder(reply.Body).Decode(&answer); err != nil || len(answer.Data.Result) == 0 {
		return ""
	}
	return fmt.Sprint(answer.Data.Result[0].Value[1])
}

// A real Prometheus scrapes real daemons: both are up, counters and both kinds
// of histogram arrive.
func TestPrometheusScrapes(t *testing.T) {
	prometheusTool(t, "prometheus")
	dir := shortDir(t)
	lookupd := lookupdConfig(t, dir)
	lookupd.HTTPListen = freeAddress(t)
	lookupd.DiskDir, lookupd.DiskBytes = t.TempDir(), 64<<20
	start(t, func(ctx context.Context) error { return RunLookupd(ctx, lookupd, Control{}, quiet) })
	worker := &config.WorkerConfig{}
	worker.RuntimeDir, worker.HTTPListen = dir, freeAddress(t)
	worker.SetDefaults()
	start(t, func(ctx context.Context) error { return RunWorker(ctx, worker, Control{}, quiet) })
	gpu := &config.WorkerConfig{Device: "cuda-0"} // whether there is one or not: the series are there
	gpu.RuntimeDir, gpu.HTTPListen = dir, freeAddress(t)
	gpu.SetDefaults()
	start(t, func(ctx context.Context) error { return RunWorker(ctx, gpu, Control{}, quiet) })
	until(t, "lookupd answers", func() bool { _, err := LookupdStatus(t.Context(), dir); return err == nil })
	path := filepath.Join(dir, "lookup")
	engine(t, dir, path)
	if got := hit(t, path, testBlob()); got != 0 {
		t.Errorf("hit %d in an empty store", got)
	}

	conductor := routingConductor(t)
	if code := status(t, "http://"+conductor+"/services"); code != http.StatusOK {
		t.Errorf("/services: %d", code)
	}

	address := prometheus(t, "native-histograms", lookupd.HTTPListen, worker.HTTPListen, gpu.HTTPListen, conductor)
	classic := prometheus(t, "", lookupd.HTTPListen, worker.HTTPListen, gpu.HTTPListen, conductor)
	for expression, want := range map[string]string{
		`sum(up{job="mooncake"})`:            "4",
		`count(mooncake_sidecar_build_info)`: "4",
		`mooncake_sidecar_router_answers_total{path="/v1/completions",status="2xx"}`: "1",
		`histogram_count(mooncake_sidecar_router_added_duration_seconds)`:            "1",
		`sum(mooncake_sidecar_router_engine_state{engine="e"})`:                      "1",
		`mooncake_sidecar_lookups_total{model="m",result="miss"}`:                    "1",
		`min(mooncake_sidecar_worker_store_ready)`:                                   "1",
		`histogram_count(mooncake_sidecar_lookup_duration_seconds)`:                  "1",
		`histogram_quantile(0.5, mooncake_sidecar_lookup_duration_seconds) < bool 5`: "1",
		`sum(mooncake_sidecar_engines)`:                                              "1",
		`min(mooncake_sidecar_ready)`:                                                "1",
		`sum(scrape_samples_scraped{job="mooncake"}) > bool 100`:                     "1",
		`max(scrape_duration_seconds{job="mooncake"}) < bool 1`:                      "1",
	} {
		until(t, expression+" is "+want, func() bool { return query(t, address, expression) == want })
	}
	// Once the curve knows how much memory there is it takes lookups in.
	until(t, "a miss-ratio curve", func() bool {
		hit(t, path, testBlob())
		return query(t, address, `mooncake_sidecar_store_miss_ratio{memory="2x"}`) != ""
	})
	until(t, "the second server has all daemons", func() bool { return query(t, classic, `sum(up{job="mooncake"})`) == "4" })
	checkWatched(t, address, classic)
	quantiles := quantileQueries(t)
	if len(quantiles) < 15 {
		t.Errorf("only %d quantiles in dashboard and alerts", len(quantiles))
	}
	for _, expression := range quantiles {
		for kind, server := range map[string]string{"native": address, "classic": classic} {
			until(t, kind+": "+expression, func() bool { return query(t, server, "count("+expression+")") != "" })
		}
	}
}

var (
	rateOf     = regexp.MustCompile(`rate\(([^\[]+)\[[^\]]+\]\)`)
	comparison = regexp.MustCompile(`\s*[<>]\s*[0-9.]+\s*$`)
)

// quantileQueries are those of the dashboards and the alerts, of the counts since
// the start instead of rates, and without limits.
func quantileQueries(t *testing.T) (all []string) {
	t.Helper()
	for _, q := range watched(t) {
		if strings.Contains(q.expression, "histogram_quantile") {
			all = append(all, comparison.ReplaceAllString(rateOf.ReplaceAllString(q.expression, "$1"), ""))
		}
	}
	return all
}

// promtool finds nothing to say about what the daemons show.
func TestPromtool(t *testing.T) {
	promtool := prometheusTool(t, "promtool")
	dir := shortDir(t)
	startLookupd(t, dir)
	startWorker(t, dir)
	_, ofConductor := fetchFrom(t, http.DefaultClient, "http://"+routingConductor(t)+"/metrics")
	shown := map[string]string{"conductor": ofConductor}
	for _, session := range []string{config.LookupdSocket, config.WorkerSocket("host-0")} {
		_, shown[session] = fetch(t, dir, session, "GET", "/metrics", "")
	}
	for session, text := range shown {
		check := exec.Command(promtool, "check", "metrics")
		check.Stdin = strings.NewReader(text)
		if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", session, err, out)
		}
	}
	for file := range alerts(t) {
		path := filepath.Join("..", "..", "deploy", "prometheus", file)
		for name, verb := range map[string]string{path: "check", strings.TrimSuffix(path, ".yml") + "_test.yml": "test"} {
			if out, err := exec.Command(promtool, verb, "rules", name).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", name, err, out)
			}
		}
	}
}
