package suite

import (
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"time"
)

// needGPU: a GPU and its driver's tools.
func needGPU(*Setting) string {
	if err := exec.Command("nvidia-smi", "-L").Run(); err != nil {
		return "no GPU: nvidia-smi lists none"
	}
	return ""
}

func gpu() Part {
	return Part{
		Name: "gpu", Title: "The path between GPU memory and the store", Needs: []Need{needPython, needGPU},
		Quick: 180 * time.Second, Full: 30 * time.Minute,
		Command: func(s *Setting) []string {
			return []string{s.Python, "bench/gpu/check.py", "--programs", s.Binaries, "--json", s.File("gpu.json")}
		},
		Read: func(s *Setting) (*Found, error) { return readGPU(s.File("gpu.json")) },
	}
}

func readGPU(path string) (*Found, error) {
	var result struct {
		Device   string `json:"device"`
		Findings []struct {
			Check   string         `json:"check"`
			OK      bool           `json:"ok"`
			Figures map[string]any `json:"figures"`
		} `json:"findings"`
	}
	if err := readJSON(path, &result); err != nil {
		return nil, err
	}
	found := &Found{Files: []string{"gpu.json"}, Notes: []string{"On " + result.Device + "."}}
	for i := range result.Findings {
		f := &result.Findings[i]
		held := 0.0
		if f.OK {
			held = 1
		}
		found.Figures = append(found.Figures, Figure{Name: f.Check + ": holds", Value: held, Targets: []Target{judged("value", held, 1, true, nil)}})
		for _, name := range slices.Sorted(maps.Keys(f.Figures)) {
			if v, ok := f.Figures[name].(float64); ok {
				found.Figures = append(found.Figures, Figure{Name: fmt.Sprintf("%s: %s", f.Check, name), Value: v})
			}
		}
	}
	return found, nil
}
