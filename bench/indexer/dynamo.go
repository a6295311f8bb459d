package indexer

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/mooncake-sidecar/sidecar/bench/indexer/workload"
)

// Dynamo is NVIDIA Dynamo's standalone indexer, of the package ai-dynamo-runtime.
type Dynamo struct {
	// Python that has the package.
	Python string
}

var _ Dialect = Dynamo{}

// Name implements Dialect.
func (Dynamo) Name() string { return "dynamo" }

// Command implements Dialect.
func (d Dynamo) Command(_ string, port, threads int) (program string, args, env []string) {
	return d.Python, []string{"-m", "dynamo.indexer", "--port", strconv.Itoa(port), "--threads", strconv.Itoa(threads)}, nil
}

// Register implements Dialect.
func (Dynamo) Register(engine int, endpoint string, blockTokens int) (path string, body []byte) {
	return "/register", fmt.Appendf(nil, `{"instance_id":%d,"endpoint":%q,"model_name":%q,"block_size":%d,"dp_rank":0}`, engine+1, endpoint, workload.Model, blockTokens)
}

// Forms implements Dialect.
func (Dynamo) Forms() []string { return []string{formJSON} }

// Question implements Dialect.
func (Dynamo) Question(_ string, tokens []uint32, _ int) (path, contentType string, body []byte) {
	body = appendTokens([]byte(`{"token_ids":[`), tokens)
	return "/query", "application/json", fmt.Appendf(body, `],"model_name":%q}`, workload.Model)
}

// Held implements Dialect.
func (Dynamo) Held(answer []byte) (map[string]int, error) {
	var a struct {
		Instances map[string]struct {
			Longest int `json:"longest_matched"`
		} `json:"instances"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return nil, fmt.Errorf("reading an answer: %w", err)
	}
	held := map[string]int{}
	for instance, match := range a.Instances {
		if match.Longest > 0 {
			held[instance] = match.Longest
		}
	}
	return held, nil
}
