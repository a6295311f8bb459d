package metrics

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/fleet"
	"github.com/mooncake-sidecar/sidecar/conductor/router"
	"github.com/mooncake-sidecar/sidecar/internal/missratio"
	"github.com/mooncake-sidecar/sidecar/lookupd"
	"github.com/mooncake-sidecar/sidecar/lookupd/events"
	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
	"github.com/mooncake-sidecar/sidecar/worker"
)

// registries returns both daemons' metrics with something in every one.
func registries() map[string]*Registry {
	l := NewRegistry("mooncake-lookupd", "v1")
	took := l.LookupTimes()
	for _, d := range []time.Duration{0, 3 * time.Microsecond, 40 * time.Microsecond, time.Millisecond, 2 * time.Hour} {
		took.Observe(d.Seconds())
	}
	counters := &lookupd.Counters{Lookups: 5, Misses: 2, QueryTokens: 100, HitTokens: 60}
	l.AddLookupd(func() lookupd.Stats {
		return lookupd.Stats{Total: *counters, Models: map[string]*lookupd.Counters{"llama": counters}, Engines: make([]lookupd.EngineStats, 2), Sessions: 3}
	})
	stats := func() embedded.Stats {
		return embedded.Stats{
			Disk:   &disk.Stats{InService: true, CapacityBytes: 5000, UsedBytes: 70, Errors: [disk.ErrorKinds]uint64{disk.KindIO: 3}, QueuedBytes: 8, ScanRegions: 4, ScannedRegions: 1},
			Tiers:  embedded.TierStats{Demoted: 6, Lost: 1, Promoted: 2},
			Missed: [embedded.MissReasons]uint64{embedded.MissExpired: 4},
			Chunks: 4, CapacityBytes: 1000, SizeBytes: 2000, UsedBytes: 300, PinnedBytes: 50, IdleBytes: 60, SlotsMoved: 12, Nodes: []embedded.NodeStats{{Node: -1, SizeBytes: 500}, {Node: 4, SizeBytes: 1500, CapacityBytes: 1000, UsedBytes: 300}}, Recovered: &embedded.Recovery{Chunks: 4, Dropped: 1},
			PutsNoSpace: 1, PutsDraining: 2, PutsOverQuota: 3, Policy: "lru", EvictedAges: [9]uint64{2, 0, 5, 8: 1}, EvictedAge: time.Hour, Created: 9,
		}
	}
	l.AddStore(stats)
	l.AddDisk(stats)
	l.AddMissRatio(func() []missratio.Point {
		return []missratio.Point{{Factor: 0.5, HitRatio: math.NaN()}, {Factor: 1, Chunks: 100, Hits: 44, HitRatio: 0.44}, {Factor: 2, Chunks: 100, Hits: 61, HitRatio: 0.61}}
	})
	l.AddEvents(func() (events.Stats, bool) {
		return events.Stats{
			Events:  map[events.EventKind]uint64{{Kind: events.Stored, Medium: "CPU"}: 7, {Kind: events.Cleared}: 1},
			Batches: 3, Announcements: map[events.Reason]uint64{events.Reset: 1}, Told: 9,
		}, true
	}, func() uint64 { return 12 })
	l.StoreCallTimes("get")("get", time.Millisecond)
	read, _ := l.DiskTimes()
	read(3 * time.Millisecond)
	l.AddReadiness(func() map[string]bool { return map[string]bool{"store": true, "memory": false} })
	w := NewRegistry("mooncake-worker", "v1")
	load, store := w.JobTimes()
	for _, o := range []prometheus.Observer{load.Took, load.Ask, load.Move, store.Took} {
		o.Observe(1)
	}
	jobs := worker.JobStats{ByStatus: map[string]uint64{"ok": 3}, ByReason: map[string]uint64{"corrupt": 1}, Bytes: 77}
	w.AddWorker(func() worker.Stats { return worker.Stats{LoadJobs: jobs, StoreJobs: jobs} }, func() bool { return true })
	w.AddGPU(func() GPU {
		return GPU{
			Flows:       []GPUFlow{{Load: true, Way: "kernel", Launches: 2, Bytes: 50, Caches: 1}, {Way: "copy_engine", Bytes: 60}},
			MappedBytes: 7, StoreBytes: 9, RegisteredBytes: 8, RefusedBytes: 1, BufferedBytes: 3, Waits: 4, Waited: 250 * time.Millisecond, Fenced: 5, Refused: 6, Failed: 2, Lost: true,
		}
	})
	c := NewRegistry("mooncake-conductor", "v1")
	answered := c.ConductorCalls([]string{"/query"})
	answered("/query", 200, time.Millisecond)
	answered("/query", 404, time.Millisecond)
	answered("/made/up", 200, time.Second)
	c.AddConductor(func() contract.Stats {
		return contract.Stats{Blocks: 5, Bytes: 6, Queries: 7, TokensMatched: 8, Snapshots: contract.Snapshots{Interval: time.Minute, Age: time.Hour, Written: 3, Failed: 2}}
	}, func() []contract.Status {
		one := contract.Status{State: contract.Incomplete, Gaps: 2, Lost: 1, Replays: 5, Unanswered: 3, Overrun: 6, Live: 7, Delay: 250 * time.Millisecond}
		one.Blocks.Stored = 4
		return []contract.Status{one, one}
	})
	times := c.RouterTimes()
	times.Sent(time.Millisecond)
	times.FirstToken(time.Second)
	times.Answered("/v1/completions", 200)
	times.Answered("/v1/completions", 0)
	c.AddRouter(func() router.Stats {
		return router.Stats{Decisions: 9, InFlight: 1, Waiting: 2, Full: 3, RefusedLate: 4, RefusedBusy: 5, Nobody: 6, Unserved: 7, Retries: 8, CopiesFailed: 1, TokensJoined: 2, TokenBytes: 64, Contexts: 3}
	}, func() []fleet.View {
		return []fleet.View{
			{Name: "a", Up: true, InUse: true, Ranks: []fleet.RankView{{OurRequests: 2, QueueSeconds: 0.5}, {OurRequests: 1, OtherPrompts: 1, OtherSequences: 3, QueueSeconds: 2}}, Counts: fleet.Counts{Begun: 11, Outages: 1}},
			{Name: "b", Counts: fleet.Counts{Refused: 4, Broken: 5, FailedPolls: 6}}, {Name: "c", Up: true, Draining: true}, {Name: "d", Up: true},
		}
	})
	return map[string]*Registry{"lookupd": l, "worker": w, "conductor": c}
}

// scrape returns what a scrape of the handler brings.
func scrape(t *testing.T, r *Registry) string {
	t.Helper()
	server := httptest.NewServer(r.Handler())
	defer server.Close()
	reply, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err != nil || reply.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v: %s", reply.Status, err, text)
	}
	return string(text)
}

func TestScrape(t *testing.T) {
	all := registries()
	text := scrape(t, all["lookupd"])
	for _, want := range []string{
		`mooncake_sidecar_build_info{goversion="go`, `program="mooncake-lookupd"`, "go_goroutines", "process_resident_memory_bytes",
		`mooncake_sidecar_lookups_total{model="llama",result="hit"} 3`, `mooncake_sidecar_lookups_total{model="llama",result="miss"} 2`,
		`mooncake_sidecar_lookup_hit_tokens_total{model="llama"} 60`, `mooncake_sidecar_lookup_errors_total{reason="malformed"} 0`,
		`mooncake_sidecar_store_free_bytes{tier="memory"} 700`, `mooncake_sidecar_store_recovered 1`, `mooncake_sidecar_store_recovery_chunks{outcome="dropped"} 1`,
		`mooncake_sidecar_lookup_duration_seconds_bucket{le="1e-05"} 2`, `mooncake_sidecar_lookup_duration_seconds_bucket{le="+Inf"} 5`,
		`mooncake_sidecar_ready{check="memory"} 0`, `mooncake_sidecar_ready{check="store"} 1`,
		`mooncake_sidecar_store_pinned_bytes{tier="memory"} 50`, `mooncake_sidecar_store_created_chunks_total{tier="memory"} 9`,
		`mooncake_sidecar_store_allocation_failures_total{reason="quota"} 3`, `mooncake_sidecar_store_puts_total{status="refused"} 5`,
		`mooncake_sidecar_store_eviction_age_seconds_bucket{le="1"} 2`, `mooncake_sidecar_store_eviction_age_seconds_bucket{le="60"} 7`,
		`mooncake_sidecar_store_eviction_age_seconds_bucket{le="+Inf"} 8`, `mooncake_sidecar_store_eviction_age_seconds_sum 3600`,
		`mooncake_sidecar_lookup_missed_chunks_total{reason="expired"} 4`, `mooncake_sidecar_store_capacity_bytes{tier="disk"} 5000`,
		`mooncake_sidecar_store_node_bytes{node="none"} 500`, `mooncake_sidecar_store_node_bytes{node="4"} 1500`, `mooncake_sidecar_store_node_used_bytes{node="4"} 300`,
		`mooncake_sidecar_store_node_prepared_bytes{node="4"} 1000`, `mooncake_sidecar_store_idle_bytes 60`, `mooncake_sidecar_store_moved_slots_total 12`,
		`mooncake_sidecar_store_disk_in_service 1`, `mooncake_sidecar_store_disk_io_duration_seconds_sum{operation="read"} 0.003`, `mooncake_sidecar_store_disk_errors_total{kind="io"} 3`, `mooncake_sidecar_store_disk_scan_ratio 0.25`,
		`mooncake_sidecar_store_disk_queue_bytes{direction="down"} 8`, `mooncake_sidecar_store_migrated_chunks_total{direction="down",result="lost"} 1`,
		`mooncake_sidecar_store_miss_ratio{memory="2x"} 0.39`, `mooncake_sidecar_store_curve_hits_total{memory="1x"} 44`,
		`mooncake_sidecar_store_eviction_policy_info{policy="lru"} 1`, `mooncake_sidecar_store_call_duration_seconds_count{call="get"} 1`,
		`mooncake_sidecar_kv_events_blocks_total{event="BlockStored",medium="CPU"} 7`, `mooncake_sidecar_kv_events_behind_changes 3`,
		`mooncake_sidecar_kv_events_announcements_total{reason="reset"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	for _, not := range []string{`reason="` + otherRemoval + `"`, `store_miss_ratio{memory="0.5x"}`} {
		if strings.Contains(text, not) {
			t.Errorf("there is %s", not)
		}
	}
	text = scrape(t, all["conductor"])
	for _, want := range []string{
		`mooncake_sidecar_conductor_calls_total{call="/query",status="4xx"} 1`, `mooncake_sidecar_conductor_calls_total{call="other",status="2xx"} 1`,
		`mooncake_sidecar_conductor_call_duration_seconds_count{call="/query"} 2`, `mooncake_sidecar_conductor_streams{state="incomplete"} 2`,
		`mooncake_sidecar_conductor_told_blocks_total{result="stored"} 8`, `mooncake_sidecar_conductor_query_tokens_total{result="matched"} 8`, `mooncake_sidecar_conductor_gaps_total 4`,
		`mooncake_sidecar_conductor_lost_gaps_total 2`, `mooncake_sidecar_conductor_replays_total{result="asked"} 10`, `mooncake_sidecar_conductor_replays_total{result="unanswered"} 6`,
		`mooncake_sidecar_conductor_overrun_messages_total 12`, `mooncake_sidecar_conductor_live_batches_total 14`, `mooncake_sidecar_conductor_live_batch_delay_seconds_total 0.5`,
		`mooncake_sidecar_conductor_snapshot_age_seconds 3600`, `mooncake_sidecar_conductor_snapshot_interval_seconds 60`, `mooncake_sidecar_conductor_snapshots_total{result="failed"} 2`,
		`mooncake_sidecar_router_added_duration_seconds_sum 0.001`, `mooncake_sidecar_router_first_token_duration_seconds_count 1`,
		`mooncake_sidecar_router_answers_total{path="/v1/completions",status="2xx"} 1`, `mooncake_sidecar_router_answers_total{path="/v1/completions",status="none"} 1`,
		`mooncake_sidecar_router_requests_in_flight 1`, `mooncake_sidecar_router_requests_waiting 2`, `mooncake_sidecar_router_refused_requests_total{reason="full"} 3`,
		`mooncake_sidecar_router_refused_requests_total{reason="unknown_model"} 7`, `mooncake_sidecar_router_refused_requests_total{reason="decode_busy"} 5`,
		`mooncake_sidecar_router_retries_total 8`, `mooncake_sidecar_router_copies_total{result="failed"} 1`, `mooncake_sidecar_router_token_questions_total{result="joined"} 2`,
		`mooncake_sidecar_router_contexts 3`, `mooncake_sidecar_router_engine_state{engine="a",state="in_use"} 1`, `mooncake_sidecar_router_engine_state{engine="a",state="out"} 0`,
		`mooncake_sidecar_router_engine_state{engine="b",state="out"} 1`, `mooncake_sidecar_router_engine_state{engine="c",state="draining"} 1`, `mooncake_sidecar_router_engine_state{engine="d",state="asleep"} 1`,
		`mooncake_sidecar_router_engine_requests{engine="a"} 3`, `mooncake_sidecar_router_engine_other_requests{engine="a"} 4`, `mooncake_sidecar_router_engine_queue_seconds{engine="a"} 2`,
		`mooncake_sidecar_router_engine_requests_total{engine="a"} 11`, `mooncake_sidecar_router_engine_failures_total{engine="b",kind="poll"} 6`, `mooncake_sidecar_router_engine_outages_total{engine="a"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	if strings.Contains(text, "made/up") {
		t.Error("a client makes a series")
	}
	none := NewRegistry("mooncake-lookupd", "v1")
	none.AddStore(func() embedded.Stats { return embedded.Stats{} })
	none.AddDisk(func() embedded.Stats { return embedded.Stats{} })
	if text := scrape(t, none); strings.Contains(text, "store_disk_") || strings.Contains(text, `tier="disk"`) {
		t.Error("a disk tier is shown where there is none")
	}
	text = scrape(t, all["worker"])
	for _, want := range []string{
		`mooncake_sidecar_worker_jobs_total{operation="load",status="ok"} 3`, `mooncake_sidecar_worker_bytes_total{operation="store"} 77`,
		`mooncake_sidecar_worker_job_failures_total{operation="load",reason="corrupt"} 1`, `mooncake_sidecar_worker_store_ready 1`,
		`mooncake_sidecar_gpu_copied_bytes_total{operation="load",way="kernel"} 50`, `mooncake_sidecar_gpu_copied_bytes_total{operation="store",way="copy_engine"} 60`,
		`mooncake_sidecar_gpu_kv_caches{operation="load",way="kernel"} 1`, `mooncake_sidecar_gpu_event_wait_seconds_total 0.25`, `mooncake_sidecar_gpu_registered_bytes 8`,
		`mooncake_sidecar_gpu_refused_bytes 1`, `mooncake_sidecar_gpu_registrations_refused_total 6`, `mooncake_sidecar_gpu_lost 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
}

// Names, help and types are as Prometheus' linter wants them, and every family
// that is described is collected.
func TestNames(t *testing.T) {
	for name, r := range registries() {
		families, err := r.inner.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var ours []*dto.MetricFamily
		for _, f := range families {
			if strings.HasPrefix(f.GetName(), Prefix) {
				ours = append(ours, f)
			}
		}
		problems, err := promlint.NewWithMetricFamilies(ours).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s: %s", name, p.Metric, p.Text)
		}
		described := make(chan *prometheus.Desc, 1000)
		r.inner.Describe(described)
		close(described)
		for d := range described {
			if full := fqName.FindStringSubmatch(d.String()); full != nil && !strings.HasPrefix(full[1], "go_") && !strings.HasPrefix(full[1], "process_") && !hasFamily(families, full[1]) {
				t.Errorf("%s: %s is described and never shown", name, full[1])
			}
		}
	}
}

var fqName = regexp.MustCompile(`fqName: "([^"]+)"`)

func hasFamily(families []*dto.MetricFamily, name string) bool {
	for _, f := range families {
		if f.GetName() == name {
			return true
		}
	}
	return false
}

// A histogram has both kinds of buckets, which agree.
func TestHistogramsAreClassicAndNative(t *testing.T) {
	families, err := registries()["lookupd"].inner.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != Prefix+"lookup_duration_seconds" {
			continue
		}
		h := f.GetMetric()[0].GetHistogram()
		if len(h.GetBucket()) != len(bounds) || h.GetSchema() != 3 || len(h.GetPositiveSpan()) == 0 || h.GetSampleCount() != 5 {
			t.Errorf("got %v", h)
		}
		native, at := int64(h.GetZeroCount()), int64(0)
		for _, delta := range h.GetPositiveDelta() {
			at += delta
			native += at
		}
		if native != 5 {
			t.Errorf("%d observations in native buckets", native)
		}
		return
	}
	t.Error("no histogram")
}

// registered returns the names that rules and panels may use.
func registered(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, r := range registries() {
		families, err := r.inner.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			names[f.GetName()] = true
			if f.GetType() == dto.MetricType_HISTOGRAM {
				for _, suffix := range []string{"_bucket", "_sum", "_count"} {
					names[f.GetName()+suffix] = true
				}
			}
		}
	}
	return names
}

var metricName = regexp.MustCompile(`\b(?:mooncake_sidecar|process|go)_[a-z_]+`)

// The dashboard and the alerts ask for metrics that there are.
func TestDashboardAndAlertsUseRegisteredNames(t *testing.T) {
	known := registered(t)
	files := map[string]int{
		"grafana/mooncake-sidecar.json": 15, "prometheus/alerts.yml": 8, "grafana/mooncake-conductor.json": 40, "prometheus/conductor_alerts.yml": 17,
	}
	for name, least := range files {
		data, err := os.ReadFile(filepath.Join("..", "..", "deploy", name))
		if err != nil {
			t.Fatal(err)
		}
		used := map[string]bool{}
		for _, expression := range expressions(t, name, data) {
			for _, metric := range metricName.FindAllString(expression, -1) {
				used[metric] = true
			}
		}
		for metric := range used {
			if !known[metric] {
				t.Errorf("%s uses %s, which no daemon has", name, metric)
			}
		}
		if len(used) < least {
			t.Errorf("%s uses only %d metrics", name, len(used))
		}
	}
}

// expressions finds the queries of a file.
func expressions(t *testing.T, name string, data []byte) (all []string) {
	t.Helper()
	if filepath.Ext(name) == ".yml" {
		return []string{string(data)}
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct{ List []struct{ Query any } }
	}
	if err := json.Unmarshal(data, &board); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			if target.Expr == "" {
				t.Errorf("%s: panel %q has a target without a query", name, p.Title)
			}
			all = append(all, target.Expr)
		}
	}
	for _, v := range board.Templating.List {
		all = append(all, fmt.Sprint(v.Query))
	}
	return all
}

func BenchmarkScrape(b *testing.B) {
	for name, r := range registries() {
		b.Run(name, func(b *testing.B) {
			handler := r.Handler()
			request := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
			b.ReportAllocs()
			for b.Loop() {
				handler.ServeHTTP(httptest.NewRecorder(), request)
			}
		})
	}
}
