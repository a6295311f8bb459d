//go:build cgo && linux && (amd64 || arm64)

#define _GNU_SOURCE
#include "clib.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(size_t) == 8 && sizeof(void *) == 8 && sizeof(int) == 4, "the arguments are laid out for 64 bits");

static const char *said(void) {
  const char *error = dlerror();
  return error != NULL ? error : "no reason given";
}

int mcl_load(const char *path, mcl_table *table, char *why, size_t why_bytes) {
  // The library asks the same way whether it may have the process's signals.
  if (dlsym(RTLD_DEFAULT, "Py_IsInitialized") == NULL) {
    snprintf(why, why_bytes, "this program does not export Py_IsInitialized, so %s would take SIGTERM, SIGINT and SIGHUP to itself", path);
    return 1;
  }
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(why, why_bytes, "%s", said());
    return 2;
  }
  // A function's address is copied as bytes: C has no cast for it.
#define RESOLVE(name)                                         \
  do {                                                        \
    void *symbol = dlsym(library, "mooncake_store_" #name);   \
    memcpy(&table->name, &symbol, sizeof symbol);             \
  } while (0)
#define NEEDED(result, name, arguments)                                          \
  RESOLVE(name);                                                                 \
  if (table->name == NULL) {                                                     \
    snprintf(why, why_bytes, "%s has no mooncake_store_" #name, path);           \
    dlclose(library);                                                            \
    return 3;                                                                    \
  }
#define OPTIONAL(result, name, arguments) RESOLVE(name);
  MCL_FUNCTIONS(NEEDED, OPTIONAL)
  return 0;
}

static sigset_t quiet(void) {
  sigset_t all, before;
  sigfillset(&all);
  // What a thread's own mistakes raise is not to be blocked: it would end the process
  // without a word.
  static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
  for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
    sigdelset(&all, own[i]);
  }
  pthread_sigmask(SIG_SETMASK, &all, &before);
  return before;
}

// QUIETLY makes a call without signals, and leaves the mask as it was whatever the
// library did to it.
#define QUIETLY(call)                             \
  do {                                            \
    sigset_t before = quiet();                    \
    call;                                         \
    pthread_sigmask(SIG_SETMASK, &before, NULL);  \
  } while (0)

void *mcl_create(const mcl_table *table) {
  void *store;
  QUIETLY(store = table->create());
  return store;
}

void mcl_destroy(const mcl_table *table, void *store) { QUIETLY(table->destroy(store)); }

int mcl_setup(const mcl_table *table, void *store, const char *host, const char *metadata, uint64_t segment_bytes, uint64_t buffer_bytes,
              const char *protocol, const char *device, const char *master) {
  int code;
  QUIETLY(code = table->setup(store, host, metadata, segment_bytes, buffer_bytes, protocol, device, master));
  return code;
}

int mcl_register(const mcl_table *table, void *store, void *memory, size_t bytes) {
  int code;
  QUIETLY(code = table->register_buffer(store, memory, bytes));
  return code;
}

int mcl_exist(const mcl_table *table, void *store, void *keys, size_t n, void *answers) {
  int code;
  QUIETLY(code = table->batch_is_exist(store, keys, n, answers));
  return code;
}

int mcl_put(const mcl_table *table, void *store, void *keys, void *buffers, void *sizes, size_t n, const void *how, void *answers) {
  int code;
  QUIETLY(code = table->batch_put_from(store, keys, buffers, sizes, n, how, answers));
  return code;
}

int mcl_get(const mcl_table *table, void *store, void *keys, void *buffers, void *sizes, size_t n, void *answers) {
  int code;
  QUIETLY(code = table->batch_get_into(store, keys, buffers, sizes, n, answers));
  return code;
}

void mcl_remove(const mcl_table *table, void *store, void *keys, size_t n, int force, void *answers) {
  const char **key = keys;
  int *answer = answers;
  sigset_t before = quiet();
  for (size_t i = 0; i < n; i++) {
    answer[i] = table->remove(store, key[i], force);
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

int64_t mcl_remove_regex(const mcl_table *table, void *store, const char *expression, int force) {
  int64_t code;
  QUIETLY(code = table->remove_by_regex(store, expression, force));
  return code;
}

int mcl_health(const mcl_table *table, void *store) {
  int code = 0;
  if (table->health_check != NULL) {
    QUIETLY(code = table->health_check(store));
  }
  return code;
}

int mcl_hostname(const mcl_table *table, void *store, char *name, size_t name_bytes) {
  int code = -1;
  if (table->get_hostname != NULL) {
    QUIETLY(code = table->get_hostname(store, name, name_bytes));
  }
  return code;
}
