// Package gpu asks the GPU driver, by NVML, which GPUs there are.
//
// It binds NVML with github.com/NVIDIA/go-nvml, which leaves the library's
// functions undefined for the dynamic linker to find when one is first called.
// Programs linked that way die at start where everything is bound at once (-z now,
// the default of hardened toolchains and of linkers like Zig's), don't link
// statically, and die at the call of a function that an older driver does not
// have. So the functions are defined here: each is a jump through a slot, which
// dlsym fills, or else a function that answers NVML_ERROR_FUNCTION_NOT_FOUND
// (trampolines.S, resolve.c). symbols.h lists them; a test compares it with what
// go-nvml wants, and writes it anew: go test ./internal/gpu -rewrite.
//
// A machine without the library, a build without cgo and one with the tag nonvml
// have no driver to ask: New's answer says topology.ErrNoDriver then.
package gpu
