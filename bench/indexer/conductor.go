package indexer

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/mooncake-sidecar/sidecar/bench/indexer/workload"
)

// Conductor is this project's.
type Conductor struct {
	// Program is mooncake-conductor.
	Program string
}

var _ Dialect = Conductor{}

// Name implements Dialect.
func (Conductor) Name() string { return "ours" }

// Command implements Dialect. Threads are what the runtime of Go calls processors; HTTP
// shares them.
func (c Conductor) Command(folder string, port, threads int) (program string, args, env []string) {
	config := filepath.Join(folder, "conductor_config.json")
	// A folder that can't be written to shows when the daemon can't read its file.
	_ = os.WriteFile(config, fmt.Appendf(nil, `{"http_server_port":%d,"kvevent_instance":{}}`, port), 0o600)
	return c.Program, nil, []string{"CONDUCTOR_CONFIG_PATH=" + config, "GOMAXPROCS=" + strconv.Itoa(threads)}
}

// Register implements Dialect.
func (Conductor) Register(engine int, endpoint string, blockTokens int) (path string, body []byte) {
	return "/register", fmt.Appendf(nil, `{"endpoint":%q,"type":"vLLM","modelname":%q,"instance_id":"%d","block_size":%d,"dp_rank":0}`, endpoint, workload.Model, engine, blockTokens)
}

// Forms implements Dialect.
func (Conductor) Forms() []string { return []string{formJSON, formBinary} }

// Question implements Dialect.
func (Conductor) Question(form string, tokens []uint32, blockTokens int) (path, contentType string, body []byte) {
	if form == formBinary {
		fields := url.Values{"model": {workload.Model}, "block_size": {strconv.Itoa(blockTokens)}}
		return "/query?" + fields.Encode(), "application/octet-stream", workload.LittleEndian(tokens)
	}
	body = appendTokens([]byte(`{"token_ids":[`), tokens)
	return "/query", "application/json", fmt.Appendf(body, `],"model":%q,"block_size":%d}`, workload.Model, blockTokens)
}

// Held implements Dialect.
func (Conductor) Held(answer []byte) (map[string]int, error) {
	var a map[string]map[string]struct {
		Longest int `json:"longest_matched"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return nil, fmt.Errorf("reading an answer: %w", err)
	}
	held := map[string]int{}
	for instance, match := range a["default"] {
		if match.Longest > 0 {
			held[instance] = match.Longest
		}
	}
	return held, nil
}
