package fleet

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// sample is what an engine's metrics say of one of its ranks. Sums and counts are since
// it began.
type sample struct {
	Running, Waiting float64
	// KVUsage is the share of its KV cache that is taken.
	KVUsage float64
	Asleep  bool
	// QueryTokens and HitTokens of its own prefix cache, StoreQueryTokens and StoreHitTokens
	// of what is behind it.
	QueryTokens, HitTokens, StoreQueryTokens, StoreHitTokens float64
	PromptTokens, GeneratedTokens                            float64
	// StepSeconds and Steps are of the time between tokens.
	StepSeconds, Steps float64
	// PrefillSeconds, Prefills and ComputedTokens are of prefills.
	PrefillSeconds, Prefills, ComputedTokens float64
}

// Limits of what is read of metrics.
const (
	maxMetricsBytes = 16 << 20
	maxMetricsLine  = 1 << 16
	// mostValue is what sums of whole numbers are exact to.
	mostValue = 1 << 53
)

var errMetrics = errors.New("metrics can't be read")

// field returns where a series' value belongs, nil for the many that are not needed.
func (s *sample) field(name string) *float64 {
	switch name {
	case "vllm:num_requests_running", "sglang:num_running_reqs":
		return &s.Running
	case "vllm:num_requests_waiting", "sglang:num_queue_reqs":
		return &s.Waiting
	case "vllm:kv_cache_usage_perc", "sglang:token_usage":
		return &s.KVUsage
	case "vllm:prefix_cache_queries_total":
		return &s.QueryTokens
	case "vllm:prefix_cache_hits_total":
		return &s.HitTokens
	case "vllm:external_prefix_cache_queries_total":
		return &s.StoreQueryTokens
	case "vllm:external_prefix_cache_hits_total":
		return &s.StoreHitTokens
	case "vllm:prompt_tokens_total", "sglang:prompt_tokens_total":
		return &s.PromptTokens
	case "vllm:generation_tokens_total", "sglang:generation_tokens_total":
		return &s.GeneratedTokens
	case "vllm:inter_token_latency_seconds_sum", "sglang:inter_token_latency_seconds_sum":
		return &s.StepSeconds
	case "vllm:inter_token_latency_seconds_count", "sglang:inter_token_latency_seconds_count":
		return &s.Steps
	case "vllm:request_prefill_time_seconds_sum":
		return &s.PrefillSeconds
	case "vllm:request_prefill_time_seconds_count":
		return &s.Prefills
	case "vllm:request_prefill_kv_computed_tokens_sum":
		return &s.ComputedTokens
	}
	return nil
}

// parseMetrics reads the text that Prometheus reads, for so many ranks. Series of a rank
// that is not expected are the first rank's: a process of several that each have their
// own API names its rank, and is one to us. There are no samples where nothing is an
// engine's: those that keep no figures (--disable-log-stats) are as well as others.
func parseMetrics(text []byte, ranks int) ([]sample, error) {
	samples := make([]sample, ranks)
	known := 0
	for len(text) > 0 {
		line := text
		if end := bytes.IndexByte(text, '\n'); end >= 0 {
			line, text = text[:end], text[end+1:]
		} else {
			text = nil
		}
		if len(line) > maxMetricsLine {
			return nil, fmt.Errorf("%w: a line of %d bytes", errMetrics, len(line))
		}
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		name, labels, value, ok := splitSeries(line)
		if !ok {
			return nil, fmt.Errorf("%w: %.80q", errMetrics, line)
		}
		if !(value >= 0 && value <= mostValue) {
			continue // no number, or none that an engine counts
		}
		rank := rankOf(labels, ranks)
		if string(name) == "vllm:engine_sleep_state" && label(labels, "sleep_state") == "awake" {
			samples[rank].Asleep = value == 0
			known++
			continue
		}
		if field := samples[rank].field(string(name)); field != nil {
			*field += value // of all models that it has
			known++
		}
	}
	if known == 0 {
		return nil, nil
	}
	return samples, nil
}

// splitSeries takes a line apart. A timestamp behind the value is passed over.
func splitSeries(line []byte) (name, labels []byte, value float64, ok bool) {
	end := bytes.IndexAny(line, "{ ")
	if end <= 0 {
		return nil, nil, 0, false
	}
	name, line = line[:end], line[end:]
	if line[0] == '{' {
		end = endOfLabels(line)
		if end < 0 {
			return nil, nil, 0, false
		}
		labels, line = line[1:end], line[end+1:]
	}
	text, _, _ := bytes.Cut(bytes.TrimSpace(line), []byte{' '})
	value, err := strconv.ParseFloat(string(text), 64)
	return name, labels, value, err == nil
}

// endOfLabels is where the brace is that closes the first, -1 for nowhere.
func endOfLabels(line []byte) int {
	quoted := false
	for i := 1; i < len(line); i++ {
		switch {
		case line[i] == '\\' && quoted:
			i++
		case line[i] == '"':
			quoted = !quoted
		case line[i] == '}' && !quoted:
			return i
		}
	}
	return -1
}

// label returns a label's value, as long as nothing in it is escaped; none that we look
// for has such.
func label(labels []byte, name string) string {
	for rest := labels; len(rest) > 0; {
		key, after, ok := bytes.Cut(rest, []byte(`="`))
		if !ok {
			return ""
		}
		end := 0
		for end < len(after) && after[end] != '"' {
			if after[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(after) {
			return ""
		}
		if string(bytes.Trim(key, ", ")) == name {
			return string(after[:end])
		}
		rest = after[end+1:]
	}
	return ""
}

func rankOf(labels []byte, ranks int) int {
	if ranks > 1 {
		for _, name := range [...]string{"engine", "dp_rank"} {
			if n, err := strconv.Atoi(label(labels, name)); err == nil && n >= 0 && n < ranks {
				return n
			}
		}
	}
	return 0
}
