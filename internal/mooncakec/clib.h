#include <stddef.h>
#include <stdint.h>

// The functions of the library that are called, in the order of the table.
// NEEDED ones must be there.
#define MCL_FUNCTIONS(NEEDED, OPTIONAL)                                                                                     \
  NEEDED(void *, create, (void))                                                                                            \
  NEEDED(void, destroy, (void *))                                                                                           \
  NEEDED(int, setup, (void *, const char *, const char *, uint64_t, uint64_t, const char *, const char *, const char *))    \
  NEEDED(int, register_buffer, (void *, void *, size_t))                                                                    \
  NEEDED(int, batch_is_exist, (void *, const char **, size_t, int *))                                                       \
  NEEDED(int, batch_put_from, (void *, const char **, void **, const size_t *, size_t, const void *, int *))                \
  NEEDED(int, batch_get_into, (void *, const char **, void **, const size_t *, size_t, int64_t *))                          \
  NEEDED(int, remove, (void *, const char *, int))                                                                          \
  NEEDED(int64_t, remove_by_regex, (void *, const char *, int))                                                             \
  OPTIONAL(int, health_check, (void *))                                                                                     \
  OPTIONAL(int, get_hostname, (void *, char *, size_t))

#define MCL_MEMBER(result, name, arguments) result(*name) arguments;
typedef struct {
  MCL_FUNCTIONS(MCL_MEMBER, MCL_MEMBER)
} mcl_table;
#undef MCL_MEMBER

// mcl_load loads a library and fills the table. It returns 0, or writes a reason of
// at most why_bytes, its zero included, and returns another number.
int mcl_load(const char *path, mcl_table *table, char *why, size_t why_bytes);

// The calls. Their threads have no signals meanwhile, so that those which the
// library starts have none either. Arrays are the library's to read for as long as a
// call takes.
void *mcl_create(const mcl_table *table);
void mcl_destroy(const mcl_table *table, void *store);
int mcl_setup(const mcl_table *table, void *store, const char *host, const char *metadata, uint64_t segment_bytes, uint64_t buffer_bytes,
              const char *protocol, const char *device, const char *master);
int mcl_register(const mcl_table *table, void *store, void *memory, size_t bytes);
int mcl_exist(const mcl_table *table, void *store, void *keys, size_t n, void *answers);
int mcl_put(const mcl_table *table, void *store, void *keys, void *buffers, void *sizes, size_t n, const void *how, void *answers);
int mcl_get(const mcl_table *table, void *store, void *keys, void *buffers, void *sizes, size_t n, void *answers);
// mcl_remove removes key by key: the library has no batch for it.
void mcl_remove(const mcl_table *table, void *store, void *keys, size_t n, int force, void *answers);
int64_t mcl_remove_regex(const mcl_table *table, void *store, const char *expression, int force);
// mcl_health returns the library's health, 0 when it has none.
int mcl_health(const mcl_table *table, void *store);
// mcl_hostname returns 0 when it wrote a name.
int mcl_hostname(const mcl_table *table, void *store, char *name, size_t name_bytes);
