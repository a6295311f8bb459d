//go:build cgo && linux && (amd64 || arm64) && !nonvml

package gpu

import (
	"debug/elf"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// Daemons that link NVML or CUDA start where everything is bound at once, as
// hardened toolchains have it, on machines without a driver, too.
func TestDaemonsStartWhenBoundAtOnce(t *testing.T) {
	for _, name := range []string{"mooncake-worker", "mooncake-lookupd"} {
		program := filepath.Join(t.TempDir(), name)
		build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-ldflags=-extldflags=-Wl,-z,now", "-o", program, "../../cmd/"+name)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		file, err := elf.Open(program)
		if err != nil {
			t.Fatal(err)
		}
		flags, err := file.DynValue(elf.DT_FLAGS)
		_ = file.Close()
		if err != nil || !slices.ContainsFunc(flags, func(f uint64) bool { return elf.DynFlag(f)&elf.DF_BIND_NOW != 0 }) {
			t.Errorf("%s is not bound at once: flags %x, %v", name, flags, err)
		}
		if out, err := exec.CommandContext(t.Context(), program, "--version").CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
