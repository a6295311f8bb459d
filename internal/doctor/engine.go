package doctor

import (
	"context"
	"fmt"
	"strings"
)

// writtenFor is the release of vLLM that the shim is written for.
const writtenFor = "0.32"

// expandableSegments finds what makes GPU memory impossible to share.
func expandableSegments(_ context.Context, s *System, _ *Settings) []Finding {
	for _, name := range []string{"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"} {
		value, _ := s.Env(name)
		if strings.Contains(strings.ToLower(strings.ReplaceAll(value, " ", "")), "expandable_segments:true") {
			return found(Warning, "expandable segments are on: GPU memory of that kind has no legacy IPC handle, so a worker can't map it", "$"+name,
				"take expandable_segments:True out of it for engines with a KV connector")
		}
	}
	return ok("off", "$PYTORCH_CUDA_ALLOC_CONF")
}

func vllm(ctx context.Context, s *System, c *Settings) []Finding {
	if s.Python == nil {
		return found(Info, "not looked for", "", "name the engine's interpreter: --python /path/to/python")
	}
	python, err := s.Python(ctx)
	switch {
	case err != nil:
		return found(Failure, fmt.Sprintf("the interpreter does not answer: %v", err), c.PythonPath, "name the interpreter that has vLLM with --python")
	case python.VLLM == "":
		return found(Failure, "this interpreter has no vLLM", c.PythonPath, "name the interpreter that has vLLM with --python, or pip install vllm=="+writtenFor)
	}
	var all []Finding
	if python.VLLM == writtenFor || strings.HasPrefix(python.VLLM, writtenFor+".") || strings.HasPrefix(python.VLLM, writtenFor+"+") {
		all = ok("vLLM "+python.VLLM, c.PythonPath)
	} else {
		all = found(Warning, "vLLM "+python.VLLM+"; the connector is written for "+writtenFor, c.PythonPath, "pip install 'vllm=="+writtenFor+".*', or see whether the engine's log warns")
	}
	switch {
	case python.Sidecar == "":
		all = append(all, found(Failure, "mooncake_sidecar is not installed there", c.PythonPath, c.PythonPath+" -m pip install mooncake-sidecar")...)
	case !sameRelease(python.Sidecar, c.Version):
		all = append(all, found(Warning, "mooncake_sidecar "+python.Sidecar+" with daemons "+c.Version, c.PythonPath, "install one version of both")...)
	}
	return all
}

// sameRelease compares a wheel's version with a program's, which may carry what
// git adds behind a dash; a build without a version fits all.
func sameRelease(wheel, program string) bool {
	trim := func(v string) string {
		v = strings.TrimPrefix(v, "v")
		v, _, _ = strings.Cut(v, "-")
		v, _, _ = strings.Cut(v, "+")
		return v
	}
	a, b := trim(wheel), trim(program)
	return a == b || !strings.Contains(b, ".")
}

// hashSeed finds block hashes that no other process can have.
func hashSeed(ctx context.Context, s *System, c *Settings) []Finding {
	algorithm, where := c.HashAlgorithm, "--prefix-caching-hash-algo"
	if algorithm == "" && s.Python != nil {
		if python, err := s.Python(ctx); err == nil {
			algorithm, where = python.HashAlgorithm, "vLLM's default"
		}
	}
	seed, set := s.Env("PYTHONHASHSEED")
	switch {
	case algorithm == "":
		return found(Info, "the engine's prefix-caching hash is not known", "", "say --python or --hash-algo")
	case strings.HasPrefix(algorithm, "xxhash") && !set:
		return found(Warning, algorithm+" without PYTHONHASHSEED: every process hashes in its own way, so nothing is found after a restart or by another engine", where,
			"--prefix-caching-hash-algo sha256, or the same PYTHONHASHSEED for all engines")
	case set:
		return found(Info, "PYTHONHASHSEED="+seed+" enters the hashes: engines with another value share nothing with this one", "$PYTHONHASHSEED", "the same value for all engines, or none")
	}
	return ok(algorithm+" hashes alike in all processes", where)
}
