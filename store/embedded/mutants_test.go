//go:build mutants

package embedded

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// withinMutant is how long random runs may look for a mutant.
const withinMutant = time.Minute

// mutant is a mistake in one place of the store.
type mutant struct {
	name     string
	file     string
	old, new string
}

// TestMutants shows that TestMetamorphic and TestMetamorphicTier can fail: each of
// the mistakes is made in a copy of the source, of which the rest is as it is, and
// must be found.
func TestMutants(t *testing.T) {
	for _, m := range mutants {
		findMutant(t, "TestMetamorphic", 1, &m)
	}
	for _, m := range tierMutants {
		findMutant(t, "TestMetamorphicTier", tierShare, &m)
	}
	for _, m := range slipMutants {
		findMutant(t, m.test, 1, &m.mutant)
	}
}

// findMutant has a test look for a mutant; share is what it makes of its time.
func findMutant(t *testing.T, test string, share int, m *mutant) {
	t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
		path, err := filepath.Abs(m.file)
		if err != nil {
			t.Fatal(err)
		}
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(source), m.old); n != 1 {
			t.Fatalf("%s has %d places like %q, want 1: the mutant is to be written anew", m.file, n, m.old)
		}
		began := time.Now()
		out, err := runMutant(t, test, time.Duration(share)*withinMutant, path, strings.Replace(string(source), m.old, m.new, 1))
		var ended *exec.ExitError
		switch {
		case err == nil:
			t.Errorf("not found in %v:\n%s", withinMutant, out)
		case !errors.As(err, &ended):
			t.Fatal(err)
		case !strings.Contains(out, "--- FAIL: "+test):
			t.Errorf("it does not run: %s", out)
		default:
			t.Logf("found in %v: %s", time.Since(began).Round(time.Second), firstFault(out))
		}
	})
}

// runMutant runs a metamorphic test with one file's source replaced.
func runMutant(t *testing.T, test string, runs time.Duration, path, source string) (string, error) {
	mutated := filepath.Join(t.TempDir(), filepath.Base(path))
	overlay := filepath.Join(t.TempDir(), "overlay.json")
	plan, err := json.Marshal(map[string]map[string]string{"Replace": {path: mutated}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(mutated, []byte(source), 0o600), os.WriteFile(overlay, plan, 0o600)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "test", "-count=1", "-vet=off", "-timeout", (3 * withinMutant).String(), "-overlay", overlay,
		"-run", "^"+test+"$", ".", "-metamorphic.for="+runs.String()).CombinedOutput()
	return string(out), err
}

// firstFault is the line of the report that says what was wrong.
func firstFault(out string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(line, "_test.go:") && !strings.Contains(line, "the last operations") {
			return strings.TrimSpace(line)
		}
	}
	return "no line says what"
}
