#include <stddef.h>
#include <stdint.h>

// cud_handle is CUipcMemHandle and CUipcEventHandle.
typedef struct {
  char bytes[64];
} cud_handle;

// cud_location is CUmemLocation, cud_access CUmemAccessDesc.
typedef struct {
  int type, id;
} cud_location;
typedef struct {
  cud_location location;
  int flags;
} cud_access;

// cud_copy_attributes is CUmemcpyAttributes.
typedef struct {
  int source_order;
  cud_location source, destination;
  unsigned flags;
} cud_copy_attributes;

#include "functions.h"

// cud_table has the driver's functions, NULL for an optional one that is not there.
typedef struct {
#define CUD_FIELD(field, symbol, arguments) int(*field) arguments;
  CUD_FUNCTIONS(CUD_FIELD, CUD_FIELD)
#undef CUD_FIELD
} cud_table;

// cud_load loads the library and fills the table. It returns 0, or writes a reason
// of at most why_bytes, its zero included, and returns another number. The library
// stays loaded.
int cud_load(const char *path, cud_table *table, char *why, size_t why_bytes);

// The functions below are the driver's, with the context made current first, where
// they have one.
int cud_init(const cud_table *t, int *version);
int cud_device_count(const cud_table *t, int *n);
// cud_device_at describes device number i.
int cud_device_at(const cud_table *t, int i, int *device, char *uuid, char *name, size_t name_bytes);
int cud_attribute(const cud_table *t, int attribute, int device, int *value);
const char *cud_error_name(const cud_table *t, int code);
const char *cud_error_string(const cud_table *t, int code);
int cud_retain(const cud_table *t, int device, void **context);
int cud_release(const cud_table *t, int device);
// cud_stream makes a stream of the lowest priority that waits for no other.
int cud_stream(const cud_table *t, void *context, void **stream);
int cud_stream_destroy(const cud_table *t, void *context, void *stream);
// cud_event makes an event whose waiters sleep.
int cud_event(const cud_table *t, void *context, void **event);
int cud_event_destroy(const cud_table *t, void *context, void *event);
int cud_event_record(const cud_table *t, void *context, void *event, void *stream);
int cud_event_query(const cud_table *t, void *context, void *event);
int cud_event_synchronize(const cud_table *t, void *context, void *event);
int cud_open_event(const cud_table *t, void *context, const void *handle, void **event);
int cud_open_memory(const cud_table *t, void *context, const void *handle, uint64_t *address);
int cud_close_memory(const cud_table *t, void *context, uint64_t address);
int cud_range(const cud_table *t, void *context, uint64_t address, uint64_t *base, size_t *bytes);
int cud_alloc(const cud_table *t, void *context, size_t bytes, uint64_t *address);
int cud_free(const cud_table *t, void *context, uint64_t address);
// cud_host_alloc allocates host memory that the device reaches at an address.
int cud_host_alloc(const cud_table *t, void *context, size_t bytes, void **memory, uint64_t *address);
int cud_host_free(const cud_table *t, void *context, void *memory);
// cud_host_register makes host memory reachable by the device, at an address.
int cud_host_register(const cud_table *t, void *context, void *memory, size_t bytes, uint64_t *address);
int cud_host_unregister(const cud_table *t, void *context, void *memory);
// cud_copy enqueues copies one by one.
int cud_copy(const cud_table *t, void *context, const uint64_t *to, const uint64_t *from, const size_t *bytes, size_t n, void *stream);
// cud_copy_batch enqueues copies in one call.
int cud_copy_batch(const cud_table *t, void *context, uint64_t *to, uint64_t *from, size_t *bytes, size_t n, void *stream);
int cud_module(const cud_table *t, void *context, const char *ptx, const char *name, void **module, void **function);
int cud_module_unload(const cud_table *t, void *context, void *module);
// cud_launch enqueues a kernel whose two arguments are an address and a count.
int cud_launch(const cud_table *t, void *context, void *function, unsigned blocks, unsigned threads, uint64_t list, unsigned n, void *stream);
int cud_can_map_chunks(const cud_table *t);
int cud_can_batch(const cud_table *t);
// cud_map_chunks maps chunks one after the other: those with these fabric handles, of
// 64 bytes each, or, without, those with these descriptors.
int cud_map_chunks(const cud_table *t, void *context, int device, const int *fds, char *fabric, const uint64_t *bytes, size_t n, uint64_t *address);
int cud_unmap_chunks(const cud_table *t, void *context, uint64_t address, const uint64_t *bytes, size_t n);
