package hashdiff

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/enginehash"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// requests is how many are compared.
const requests = 10_000

// request is a line of what hashes.py prints.
type request struct {
	Algorithm, Seed, Salt string
	Block                 int
	Tokens                []uint32
	Hashes                []kvevents.Hash
}

// Each algorithm and seed, blocks of all sizes, tokens of all lengths, salts in several
// scripts: the same hashes as vLLM's.
func TestAgainstVLLM(t *testing.T) {
	python := os.Getenv("MOONCAKE_SIDECAR_PYTHON")
	if python == "" {
		t.Skip("MOONCAKE_SIDECAR_PYTHON names no interpreter with vLLM")
	}
	seed := os.Getenv("MOONCAKE_SIDECAR_SEED")
	if seed == "" {
		seed = "1"
	}
	vllm := exec.CommandContext(t.Context(), python, "hashes.py", strconv.Itoa(requests), seed)
	vllm.Stderr = os.Stderr
	out, err := vllm.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := vllm.Start(); err != nil {
		t.Fatal(err)
	}
	compared, blocks, wrong := map[string]int{}, 0, 0
	const maxLineBytes = 1 << 20
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxLineBytes)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		h, err := enginehash.New(contract.HashProfile{Algorithm: r.Algorithm, Seed: r.Seed})
		if err != nil {
			t.Fatal(err)
		}
		got, err := h.Prompt(r.Tokens, r.Block, r.Salt)
		if (err != nil || !slices.Equal(got, r.Hashes)) && wrong < 10 {
			wrong++
			t.Errorf("%s with seed %q, salt %q, %d tokens in blocks of %d: %v, not %v, %v", r.Algorithm, r.Seed, r.Salt, len(r.Tokens), r.Block, got, r.Hashes, err)
		}
		compared[r.Algorithm]++
		blocks += len(r.Hashes)
	}
	if err := vllm.Wait(); err != nil || lines.Err() != nil {
		t.Fatal(err, lines.Err())
	}
	total := 0
	for _, n := range compared {
		total += n
	}
	if total != requests || len(compared) != len(enginehash.Algorithms()) || blocks < requests {
		t.Errorf("%d blocks of %v were compared", blocks, compared)
	}
	t.Logf("%d blocks of %v", blocks, compared)
}
