package suite

import (
	"fmt"
	"os"
	"path/filepath"
)

// Need is something that a machine may lack. It returns why a part is not possible,
// or "".
type Need func(s *Setting) string

// needPython: an interpreter with vLLM.
func needPython(s *Setting) string {
	if _, err := os.Stat(s.Python); err != nil {
		return "no Python with vLLM: run make setup, or name one by MOONCAKE_SIDECAR_PYTHON"
	}
	return ""
}

// needMooncake: the peers' packages beside vLLM.
func needMooncake(s *Setting) string {
	if why := needPython(s); why != "" {
		return why
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(s.Python), "mooncake_master")); err != nil {
		return "no Mooncake beside vLLM, which the in-tree connector needs: run make setup-peers"
	}
	return ""
}

// needTraces: Mooncake's public traces.
func needTraces(s *Setting) string {
	for _, name := range []string{"conversation", "synthetic"} {
		if _, err := os.Stat(s.trace(name)); s.Traces == "" || err != nil {
			return "no traces: name their folder by TRACES (github.com/kvcache-ai/Mooncake, FAST25-release/traces)"
		}
	}
	return ""
}

// needFile: a file or folder of the repository that something makes.
func needFile(path, made string) Need {
	return func(s *Setting) string {
		if _, err := os.Stat(filepath.Join(s.Root, path)); err != nil {
			return fmt.Sprintf("no %s: run %s", path, made)
		}
		return ""
	}
}
