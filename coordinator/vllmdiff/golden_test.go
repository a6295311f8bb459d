package vllmdiff_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/mooncake-sidecar/sidecar/coordinator/vllmdiff"
)

// longest request of a model's golden cases, in hashes: some windows beyond the
// longest of the model, but no more than the file can bear.
var longest = map[string]int{
	"gemma-3-27b": 180, "gemma-3-27b-dense": 180, "llama-4-scout": 1100, "granite-4-small": 30,
}

// TestWriteGolden writes the golden files of the coordinator anew. It needs
// MOONCAKE_SIDECAR_PYTHON, and MOONCAKE_SIDECAR_UPDATE_GOLDEN=1 to say that it
// should.
func TestWriteGolden(t *testing.T) {
	python := os.Getenv("MOONCAKE_SIDECAR_PYTHON")
	if os.Getenv("MOONCAKE_SIDECAR_UPDATE_GOLDEN") != "1" || python == "" {
		t.Skip("writes files")
	}
	vllm, err := vllmdiff.StartVLLM(t.Context(), python)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := vllm.Close(); err != nil {
			t.Error(err)
		}
	}()
	generator := vllmdiff.NewGenerator(1)
	var random bytes.Buffer
	for written := 0; written < 1000; {
		if writeAnswered(t, &random, vllm, "", generator.Next()) {
			written++
		}
	}
	var models bytes.Buffer
	script := exec.CommandContext(t.Context(), python, "models.py")
	script.Stderr = os.Stderr
	described, err := script.Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(described) {
		var name struct{ Name string }
		config := vllmdiff.Case{TP: 1, PCP: 1, PP: 1, KVHeads: 8}
		if err := json.Unmarshal(line, &name); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(line, &config); err != nil {
			t.Fatal(err)
		}
		generator := vllmdiff.NewGenerator(2)
		generator.SetLongest(longest[name.Name])
		for written := 0; written < 12; {
			c := config
			generator.Question(&c)
			if c.Length() == 0 && c.T == 0 {
				continue
			}
			if writeAnswered(t, &models, vllm, name.Name, &c) {
				written++
			}
		}
	}
	folder := "../../testdata/golden/coordinator"
	for name, data := range map[string]*bytes.Buffer{"vllm.jsonl": &random, "models.jsonl": &models} {
		if err := os.WriteFile(filepath.Join(folder, name), data.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// writeAnswered appends a case with vLLM's answer; false where vLLM raises.
func writeAnswered(t *testing.T, out *bytes.Buffer, vllm *vllmdiff.VLLM, name string, c *vllmdiff.Case) bool {
	t.Helper()
	theirs, err := vllm.Ask(c)
	if err != nil {
		t.Fatal(err)
	}
	merged := map[string]json.RawMessage{}
	for _, part := range []string{encode(t, c), theirs} {
		if err := json.Unmarshal([]byte(part), &merged); err != nil {
			t.Fatal(err)
		}
	}
	if merged["raised"] != nil {
		return false
	}
	for _, field := range []string{"prefixes", "factors", "own", "lifecycle",
		"tp", "pcp", "dcp", "pp", "kv_heads", "store_tp", "layout", "cross", "rank", "model", "prefix", "partial"} {
		delete(merged, field)
	}
	if name != "" {
		merged["name"] = json.RawMessage(`"` + name + `"`)
	}
	line, err := json.Marshal(merged)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(append(line, '\n'))
	return true
}
