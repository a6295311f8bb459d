//go:build cgo && linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheDriversHeaderAgrees with every function, structure and number that is
// used, where NVIDIA's cuda.h is at hand (CUDA_INCLUDE, a directory; make test-cuda).
func TestTheDriversHeaderAgrees(t *testing.T) {
	include := os.Getenv("CUDA_INCLUDE")
	if include == "" {
		t.Skip("no cuda.h here: CUDA_INCLUDE names no directory")
	}
	source, err := os.ReadFile("testdata/header.cc")
	if err != nil {
		t.Fatal(err)
	}
	text := string(source)
	for name, value := range map[string]int{
		"CUDA_ERROR_INVALID_VALUE": int(InvalidValue), "CUDA_ERROR_OUT_OF_MEMORY": int(OutOfMemory), "CUDA_ERROR_NO_DEVICE": int(NoDevice),
		"CUDA_ERROR_ALREADY_MAPPED": int(AlreadyMapped), "CUDA_ERROR_INVALID_HANDLE": int(InvalidHandle), "CUDA_ERROR_NOT_READY": int(NotReady),
		"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED": int(AlreadyRegistered),
		"CUDA_ERROR_ECC_UNCORRECTABLE":              int(ECCUncorrectable), "CUDA_ERROR_CONTAINED": int(Contained), "CUDA_ERROR_ILLEGAL_ADDRESS": int(IllegalAddress),
		"CUDA_ERROR_LAUNCH_TIMEOUT": int(LaunchTimeout), "CUDA_ERROR_CONTEXT_IS_DESTROYED": int(ContextDestroyed), "CUDA_ERROR_ASSERT": int(Assert),
		"CUDA_ERROR_HARDWARE_STACK_ERROR": int(HardwareStack), "CUDA_ERROR_ILLEGAL_INSTRUCTION": int(IllegalInstr),
		"CUDA_ERROR_MISALIGNED_ADDRESS": int(MisalignedAddress), "CUDA_ERROR_INVALID_ADDRESS_SPACE": int(InvalidAddrSpace), "CUDA_ERROR_INVALID_PC": int(InvalidPC),
		"CUDA_ERROR_LAUNCH_FAILED": int(LaunchFailed), "CUDA_ERROR_TENSOR_MEMORY_LEAK": int(TensorMemoryLeak), "CUDA_ERROR_MPS_CLIENT_TERMINATED": int(MPSTerminated),
		"CUDA_ERROR_EXTERNAL_DEVICE": int(ExternalDevice), "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT": attrProcessors, "CU_IPC_HANDLE_SIZE": HandleBytes,
	} {
		text += fmt.Sprintf("IS(%d, %s)\n", value, name)
	}
	compiler := os.Getenv("CXX")
	if compiler == "" {
		compiler = "c++"
	}
	// Beside the original, for what it includes by its place.
	check := func(text string) (string, error) {
		dir, err := filepath.Abs("testdata")
		if err != nil {
			t.Fatal(err)
		}
		build := exec.Command(compiler, "-std=c++20", "-w", "-U_GNU_SOURCE", "-fsyntax-only", "-iquote", dir, "-iquote", filepath.Dir(dir), "-I", include, "-x", "c++", "-")
		build.Stdin = strings.NewReader(text)
		out, err := build.CombinedOutput()
		return string(out), err
	}
	if out, err := check(text); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	// The check can fail.
	for _, wrong := range []string{
		"IS(1, CUDA_ERROR_OUT_OF_MEMORY)", "CHECK(x, cuMemAlloc, (uint64_t *, size_t))", "CHECK(x, cuInit, (unsigned, int))",
		"CHECK(x, cuIpcOpenEventHandle, (void **, void *))", "LIES(cud_copy_attributes, CUmemcpyAttributes, source, dstLocHint)",
	} {
		if out, err := check(text + wrong + "\n"); err == nil || !strings.Contains(out, "static assertion") {
			t.Errorf("%s was not noticed: %v: %s", wrong, err, out)
		}
	}
}
