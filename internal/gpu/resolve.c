//go:build cgo && linux && (amd64 || arm64) && !nonvml

#include "resolve.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define FUNCTION(name) #name,
static const char *const names[] = {
#include "symbols.h"
};
#undef FUNCTION

enum { functions = sizeof names / sizeof *names };

// In trampolines.S, in the order of symbols.h.
extern void *gpu_slots[];

// What a function that the library does not have answers: NVML's
// NVML_ERROR_FUNCTION_NOT_FOUND.
int gpu_absent(void);
int gpu_absent(void) { return 13; }

static int resolve(const char *path, char *why, size_t why_bytes) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    const char *error = dlerror();
    snprintf(why, why_bytes, "%s", error != NULL ? error : "dlopen failed");
    return 1;
  }
  // The one function that answers no number: it must be there.
  if (dlsym(library, "nvmlErrorString") == NULL) {
    snprintf(why, why_bytes, "%s is not NVML: it has no nvmlErrorString", path);
    dlclose(library);
    return 2;
  }
  for (size_t i = 0; i < functions; i++) {
    void *function = dlsym(library, names[i]);
    if (function != NULL) {
      gpu_slots[i] = function;
    }
  }
  return 0;
}

int gpu_resolve(const char *path, char *why, size_t why_bytes) {
  static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER; // the slots are the process's
  pthread_mutex_lock(&one_at_a_time);
  int answer = resolve(path, why, why_bytes);
  pthread_mutex_unlock(&one_at_a_time);
  return answer;
}
