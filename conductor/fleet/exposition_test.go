package fleet

import (
	"errors"
	"strings"
	"testing"
)

const twoRanks = `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m{}"} 3.0
vllm:num_requests_running{engine="1",model_name="m\"} 9"} 4.0 1700000000
vllm:num_requests_waiting{engine="0",model_name="m"} 5.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 77.0
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 1.0
vllm:engine_sleep_state{engine="1",model_name="m",sleep_state="awake"} 0.0
vllm:engine_sleep_state{engine="1",model_name="m",sleep_state="weights_offloaded"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.5e+06
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 12.5
vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="m"} 600.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 600.0
vllm:generation_tokens_total{engine="0",model_name="m"} NaN
process_start_time_seconds 1.7e9
`

func TestMetricsOfRanks(t *testing.T) {
	samples, err := parseMetrics([]byte(twoRanks), 2)
	if err != nil {
		t.Fatal(err)
	}
	want := []sample{{Running: 3, Waiting: 5, PromptTokens: 1.5e6, StepSeconds: 12.5, Steps: 600}, {Running: 4, KVUsage: 0.25, Asleep: true}}
	for i := range want {
		if samples[i] != want[i] {
			t.Errorf("rank %d: %+v, want %+v", i, samples[i], want[i])
		}
	}
	if one, err := parseMetrics([]byte("vllm:num_requests_running{engine=\"5\"} 2\nsglang:num_queue_reqs 1"), 1); err != nil || one[0].Running != 2 || one[0].Waiting != 1 {
		t.Errorf("an API of one rank that is the engine's sixth: %+v, %v", one, err)
	}
}

func TestMetricsThatCannotBeRead(t *testing.T) {
	for name, text := range map[string]string{
		"a web page":      "<html>\n",
		"an open brace":   "vllm:num_requests_running{engine=\"0 3\n",
		"no number":       "vllm:num_requests_running x\n",
		"an endless line": "vllm:num_requests_running{a=\"" + strings.Repeat("x", maxMetricsLine) + "\"} 1\n",
	} {
		if samples, err := parseMetrics([]byte(text), 1); !errors.Is(err, errMetrics) {
			t.Errorf("%s: %+v, %v", name, samples, err)
		}
	}
}

// TestMetricsWithoutFigures: an engine that keeps none is none the worse.
func TestMetricsWithoutFigures(t *testing.T) {
	for _, text := range []string{"", "# HELP python_info x\npython_info{version=\"3\"} 1.0\nhttp_requests_total{handler=\"/x\"} 3\n"} {
		if samples, err := parseMetrics([]byte(text), 2); samples != nil || err != nil {
			t.Errorf("%q: %+v, %v", text, samples, err)
		}
	}
	asleep := "vllm:engine_sleep_state{sleep_state=\"awake\"} 0\n"
	if samples, err := parseMetrics([]byte(asleep), 1); err != nil || len(samples) != 1 || !samples[0].Asleep {
		t.Errorf("%+v, %v", samples, err)
	}
}

func FuzzParseMetrics(f *testing.F) {
	f.Add([]byte(twoRanks), 2)
	f.Add([]byte("vllm:num_requests_waiting{engine=\"\\\\\"} 1e308\nvllm:num_requests_waiting{engine=\"\\"), 1)
	f.Fuzz(func(t *testing.T, text []byte, ranks int) {
		if ranks < 1 || ranks > 8 {
			return
		}
		samples, err := parseMetrics(text, ranks)
		if err != nil {
			return
		}
		for _, s := range samples {
			r := rank{flights: map[*Flight]struct{}{}}
			r.corrected(&s, 0, 0)
			if r.otherPrompts < 0 || r.otherSequences < 0 || r.decoder().Sequences < 0 {
				t.Errorf("%+v makes %d prompts and %d sequences", s, r.otherPrompts, r.otherSequences)
			}
		}
	})
}

func FuzzParseModels(f *testing.F) {
	f.Add([]byte(`{"object":"list","data":[{"id":"m","root":"m","parent":null,"max_model_len":4096}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if models, err := parseModels(body); (err == nil) != (len(models) > 0) {
			t.Errorf("%d models and %v", len(models), err)
		}
	})
}
