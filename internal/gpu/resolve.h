#include <stddef.h>

// gpu_resolve loads an NVML library and points the slots at its functions. It
// returns 0, or writes a reason of at most why_bytes, its zero included, and
// returns another number. Call it before any function of NVML.
int gpu_resolve(const char *path, char *why, size_t why_bytes);
