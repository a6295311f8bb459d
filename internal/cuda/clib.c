//go:build cgo && linux && (amd64 || arm64)

#define _GNU_SOURCE
#include "clib.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

_Static_assert(sizeof(cud_handle) == 64 && sizeof(cud_access) == 12 && sizeof(cud_copy_attributes) == 24,
               "these are the driver's structures");

enum {
  LAZY_PEER_ACCESS = 1,   // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
  NON_BLOCKING = 1,       // CU_STREAM_NON_BLOCKING
  BLOCKING_SYNC = 1,      // CU_EVENT_BLOCKING_SYNC
  DISABLE_TIMING = 2,     // CU_EVENT_DISABLE_TIMING
  HOST_DEVICE_MAP = 2,    // CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTALLOC_DEVICEMAP
  POSIX_DESCRIPTOR = 1,   // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
  FABRIC = 8,             // CU_MEM_HANDLE_TYPE_FABRIC
  LOCATION_DEVICE = 1,    // CU_MEM_LOCATION_TYPE_DEVICE
  ACCESS_READ_WRITE = 3,  // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
  SOURCE_ORDER_STREAM = 1 // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
};

int cud_load(const char *path, cud_table *table, char *why, size_t why_bytes) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    const char *error = dlerror();
    snprintf(why, why_bytes, "%s", error != NULL ? error : "dlopen failed");
    return 1;
  }
  // A function's address is copied as bytes: C has no cast for it.
#define OPTIONAL(field, name, arguments)            \
  do {                                              \
    void *symbol = dlsym(library, #name);           \
    memcpy(&table->field, &symbol, sizeof symbol);  \
  } while (0);
#define NEEDED(field, name, arguments)                                                                   \
  OPTIONAL(field, name, arguments)                                                                       \
  if (table->field == NULL) {                                                                            \
    snprintf(why, why_bytes, "%s has no " #name ": the driver is too old, or no CUDA driver", path);     \
    dlclose(library);                                                                                    \
    return 2;                                                                                            \
  }
  CUD_FUNCTIONS(NEEDED, OPTIONAL)
  return 0;
}

// IN makes the context current and returns what the call says.
#define IN(context, call)                        \
  do {                                           \
    int code_ = t->set_current(context);         \
    return code_ != 0 ? code_ : (call);          \
  } while (0)

int cud_init(const cud_table *t, int *version) {
  int code = t->init(0);
  return code != 0 ? code : t->version(version);
}

int cud_device_count(const cud_table *t, int *n) { return t->device_count(n); }

int cud_device_at(const cud_table *t, int i, int *device, char *uuid, char *name, size_t name_bytes) {
  int code = t->device_get(device, i);
  if (code == 0) {
    code = t->device_uuid(uuid, *device);
  }
  if (code == 0) {
    code = t->device_name(name, (int)name_bytes, *device);
  }
  return code;
}

int cud_attribute(const cud_table *t, int attribute, int device, int *value) { return t->device_attribute(value, attribute, device); }

const char *cud_error_name(const cud_table *t, int code) {
  const char *text = NULL;
  return t->error_name(code, &text) == 0 ? text : NULL;
}

const char *cud_error_string(const cud_table *t, int code) {
  const char *text = NULL;
  return t->error_string(code, &text) == 0 ? text : NULL;
}

int cud_retain(const cud_table *t, int device, void **context) { return t->primary_retain(context, device); }
int cud_release(const cud_table *t, int device) { return t->primary_release(device); }

int cud_stream(const cud_table *t, void *context, void **stream) {
  int least = 0, greatest = 0, code = t->set_current(context);
  if (code == 0) {
    code = t->priorities(&least, &greatest);
  }
  return code != 0 ? code : t->stream_create(stream, NON_BLOCKING, least);
}

int cud_stream_destroy(const cud_table *t, void *context, void *stream) { IN(context, t->stream_destroy(stream)); }
int cud_event(const cud_table *t, void *context, void **event) { IN(context, t->event_create(event, BLOCKING_SYNC | DISABLE_TIMING)); }
int cud_event_destroy(const cud_table *t, void *context, void *event) { IN(context, t->event_destroy(event)); }
int cud_event_record(const cud_table *t, void *context, void *event, void *stream) { IN(context, t->event_record(event, stream)); }
int cud_event_query(const cud_table *t, void *context, void *event) { IN(context, t->event_query(event)); }
int cud_event_synchronize(const cud_table *t, void *context, void *event) { IN(context, t->event_synchronize(event)); }

int cud_open_event(const cud_table *t, void *context, const void *handle, void **event) {
  cud_handle value;
  memcpy(&value, handle, sizeof value);
  IN(context, t->ipc_open_event(event, value));
}

int cud_open_memory(const cud_table *t, void *context, const void *handle, uint64_t *address) {
  cud_handle value;
  memcpy(&value, handle, sizeof value);
  IN(context, t->ipc_open_memory(address, value, LAZY_PEER_ACCESS));
}

int cud_close_memory(const cud_table *t, void *context, uint64_t address) { IN(context, t->ipc_close_memory(address)); }

int cud_range(const cud_table *t, void *context, uint64_t address, uint64_t *base, size_t *bytes) {
  IN(context, t->range(base, bytes, address));
}

int cud_alloc(const cud_table *t, void *context, size_t bytes, uint64_t *address) { IN(context, t->alloc(address, bytes)); }
int cud_free(const cud_table *t, void *context, uint64_t address) { IN(context, t->free(address)); }

int cud_host_alloc(const cud_table *t, void *context, size_t bytes, void **memory, uint64_t *address) {
  int code = t->set_current(context);
  if (code == 0) {
    code = t->host_alloc(memory, bytes, HOST_DEVICE_MAP);
  }
  if (code == 0 && (code = t->host_address(address, *memory, 0)) != 0) {
    t->host_free(*memory);
  }
  return code;
}

int cud_host_free(const cud_table *t, void *context, void *memory) { IN(context, t->host_free(memory)); }

int cud_host_register(const cud_table *t, void *context, void *memory, size_t bytes, uint64_t *address) {
  int code = t->set_current(context);
  if (code == 0) {
    code = t->host_register(memory, bytes, HOST_DEVICE_MAP);
  }
  if (code == 0 && (code = t->host_address(address, memory, 0)) != 0) {
    t->host_unregister(memory);
  }
  return code;
}

int cud_host_unregister(const cud_table *t, void *context, void *memory) { IN(context, t->host_unregister(memory)); }

int cud_copy(const cud_table *t, void *context, const uint64_t *to, const uint64_t *from, const size_t *bytes, size_t n, void *stream) {
  int code = t->set_current(context);
  for (size_t i = 0; i < n && code == 0; i++) {
    code = t->copy(to[i], from[i], bytes[i], stream);
  }
  return code;
}

int cud_copy_batch(const cud_table *t, void *context, uint64_t *to, uint64_t *from, size_t *bytes, size_t n, void *stream) {
  cud_copy_attributes attributes = {.source_order = SOURCE_ORDER_STREAM};
  size_t first = 0, failed = 0;
  IN(context, t->copy_batch(to, from, bytes, n, &attributes, &first, 1, &failed, stream));
}

int cud_module(const cud_table *t, void *context, const char *ptx, const char *name, void **module, void **function) {
  int code = t->set_current(context);
  if (code == 0) {
    code = t->module_load(module, ptx, 0, NULL, NULL);
  }
  if (code == 0 && (code = t->module_function(function, *module, name)) != 0) {
    t->module_unload(*module);
  }
  return code;
}

int cud_module_unload(const cud_table *t, void *context, void *module) { IN(context, t->module_unload(module)); }

int cud_launch(const cud_table *t, void *context, void *function, unsigned blocks, unsigned threads, uint64_t list, unsigned n, void *stream) {
  void *arguments[] = {&list, &n};
  IN(context, t->launch(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, NULL));
}

int cud_can_map_chunks(const cud_table *t) {
  return t->vmm_import != NULL && t->vmm_reserve != NULL && t->vmm_unreserve != NULL && t->vmm_map != NULL && t->vmm_unmap != NULL &&
         t->vmm_access != NULL && t->vmm_release != NULL;
}

int cud_can_batch(const cud_table *t) { return t->copy_batch != NULL; }

// unmap unmaps the first chunks of a range.
static int unmap(const cud_table *t, uint64_t address, const uint64_t *bytes, size_t n) {
  int code = 0;
  for (size_t i = 0; i < n; i++) {
    int answer = t->vmm_unmap(address, bytes[i]);
    code = code != 0 ? code : answer;
    address += bytes[i];
  }
  return code;
}

static uint64_t sum(const uint64_t *bytes, size_t n) {
  uint64_t total = 0;
  for (size_t i = 0; i < n; i++) {
    total += bytes[i];
  }
  return total;
}

int cud_map_chunks(const cud_table *t, void *context, int device, const int *fds, char *fabric, const uint64_t *bytes, size_t n, uint64_t *address) {
  uint64_t total = sum(bytes, n), at = 0;
  int code = t->set_current(context);
  if (code != 0 || (code = t->vmm_reserve(address, total, 0, 0, 0)) != 0) {
    return code;
  }
  size_t mapped = 0;
  while (mapped < n && code == 0) {
    uint64_t chunk;
    // The driver takes a descriptor's number in place of a pointer.
    void *handle = fabric != NULL ? fabric + mapped * sizeof(cud_handle) : (void *)(intptr_t)fds[mapped];
    if ((code = t->vmm_import(&chunk, handle, fabric != NULL ? FABRIC : POSIX_DESCRIPTOR)) != 0) {
      break;
    }
    if ((code = t->vmm_map(*address + at, bytes[mapped], 0, chunk, 0)) == 0) {
      at += bytes[mapped++];
    }
    int released = t->vmm_release(chunk); // the mapping keeps it
    code = code != 0 ? code : released;
  }
  if (code == 0) {
    cud_access access = {{LOCATION_DEVICE, device}, ACCESS_READ_WRITE};
    code = t->vmm_access(*address, total, &access, 1);
  }
  if (code != 0) { // the first error is the one that matters
    unmap(t, *address, bytes, mapped);
    t->vmm_unreserve(*address, total);
  }
  return code;
}

int cud_unmap_chunks(const cud_table *t, void *context, uint64_t address, const uint64_t *bytes, size_t n) {
  int code = t->set_current(context);
  if (code != 0) {
    return code;
  }
  code = unmap(t, address, bytes, n);
  int freed = t->vmm_unreserve(address, sum(bytes, n));
  return code != 0 ? code : freed;
}
