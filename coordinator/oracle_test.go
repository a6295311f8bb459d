package coordinator_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/mooncake-sidecar/sidecar/bench/coordcases"
	"github.com/mooncake-sidecar/sidecar/coordinator/vllmdiff"
)

// golden is the folder of answers that vLLM or the oracle gave.
const golden = "../testdata/golden/coordinator"

// TestOracle compares with vectors that were made independently of this
// project. Where their folder is absent, a committed part of them is used.
func TestOracle(t *testing.T) {
	folder := os.Getenv("MOONCAKE_SIDECAR_ORACLE")
	if folder == "" {
		folder = "../../shared/oracle"
	}
	file := filepath.Join(folder, "coordinator_vectors.json")
	if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) && os.Getenv("MOONCAKE_SIDECAR_ORACLE") == "" {
		file = filepath.Join(golden, "oracle.jsonl")
	}
	if n := compareFile(t, file); n < 400 {
		t.Errorf("%s has only %d cases", file, n)
	}
}

// TestGolden compares with what vLLM 0.32.0 answered to random cases and to the
// configurations of real models.
func TestGolden(t *testing.T) {
	for name, least := range map[string]int{"vllm.jsonl": 1000, "models.jsonl": 130} {
		t.Run(name, func(t *testing.T) {
			if n := compareFile(t, filepath.Join(golden, name)); n < least {
				t.Errorf("only %d cases, want %d", n, least)
			}
		})
	}
}

// compareFile compares every case of a file with the answer that stands beside
// it and returns how many there were.
func compareFile(t *testing.T, file string) int {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := coordcases.Run(bytes.NewReader(data), &out); err != nil {
		t.Fatal(err)
	}
	var want []json.RawMessage
	if bytes.HasPrefix(bytes.TrimSpace(data), []byte("[")) {
		if err := json.Unmarshal(data, &want); err != nil {
			t.Fatal(err)
		}
	} else {
		for line := range bytes.Lines(data) {
			want = append(want, line)
		}
	}
	lines := bufio.NewScanner(&out)
	lines.Buffer(nil, 1<<20)
	rng := rand.New(rand.NewPCG(1, 1))
	for i, w := range want {
		var c coordcases.Case
		if err := json.Unmarshal(w, &c); err != nil {
			t.Fatal(err)
		}
		if _, err := vllmdiff.CheckOwn(&c, rng); err != nil {
			t.Errorf("case %d %s\n%v", i, w, err)
		}
		if !lines.Scan() {
			t.Fatalf("no answer to case %d", i)
		}
		type answer struct {
			Name  string          `json:"name"`
			Hit   json.RawMessage `json:"hit"`
			Masks json.RawMessage `json:"masks"`
			Tails json.RawMessage `json:"tails"`
		}
		var ours, theirs answer
		if err := errors.Join(json.Unmarshal(lines.Bytes(), &ours), json.Unmarshal(w, &theirs)); err != nil {
			t.Fatal(err)
		}
		if theirs.Hit == nil && theirs.Masks == nil {
			t.Fatalf("case %d has no expected answer", i)
		}
		if !same(ours.Hit, theirs.Hit) || !same(ours.Masks, theirs.Masks) || !same(ours.Tails, theirs.Tails) {
			t.Errorf("case %d %s\n%s\nwe say %s", i, theirs.Name, w, lines.Bytes())
		}
	}
	return len(want)
}

// same compares two JSON values but for white space.
func same(a, b json.RawMessage) bool {
	if len(a) == 0 || len(b) == 0 {
		return len(a) == len(b)
	}
	var x, y bytes.Buffer
	return errors.Join(json.Compact(&x, a), json.Compact(&y, b)) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}
