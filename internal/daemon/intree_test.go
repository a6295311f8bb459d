package daemon

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// An unmodified in-tree client finds the socket by its own naming, is answered
// right, and resets its namespace.
func TestInTreeClient(t *testing.T) {
	python := os.Getenv("MOONCAKE_SIDECAR_PYTHON")
	if python == "" {
		t.Skip("MOONCAKE_SIDECAR_PYTHON names no Python with vLLM")
	}
	dir := shortDir(t)
	startLookupd(t, dir)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	engine(t, dir, filepath.Join(dir, fmt.Sprintf("lookup_rpc_port_7_host_%s_dp_rank3", host)))
	chunks := readyStore(t, dir)
	blob := testBlob()
	put(t, chunks, blob[:6*16])

	whole := fmt.Sprintf("1000:%x", blob)
	client := exec.Command(python, "testdata/intree_client.py", "16",
		whole, fmt.Sprintf("40:%x", blob[:32]), fmt.Sprintf("96:%x", blob[:96]), "1000:", fmt.Sprintf("1000:%032x%x", 0, blob), // the first is unknown
		fmt.Sprintf("1000:%x", blob[:31]), // hashes of 16 and 15 bytes: malformed
		whole, "reset", whole)
	client.Env = append(os.Environ(), "VLLM_RPC_BASE_PATH="+dir, "VLLM_LOGGING_LEVEL=ERROR")
	client.Stderr = os.Stderr
	out, err := client.Output()
	if err != nil {
		t.Fatalf("the client failed: %v", err)
	}
	var got []any
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	want := `[[96,[[0,96]]],[32,[[0,32]]],[80,[[0,80]]],[0,[]],[0,[]],[0,[]],[96,[[0,96]]],true,[0,[]]]`
	if again, err := json.Marshal(got); err != nil || string(again) != want {
		t.Errorf("answers are %s, want %s", again, want)
	}
}
