// A double of the CUDA driver over host memory, for machines without a GPU.
//
// Streams are threads; memory of the device is a memory file, which another process
// opens by the pid and number in its handle. An address of the device is the host's
// with a bit set, so that one taken for the other is seen. What the double finds
// wrong is a violation on the control page (control.go has its layout), and so are
// its counts, its gate and the faults that it is to make.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define TAG ((uint64_t)1 << 60)

enum { OK, INVALID_VALUE = 1, NO_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, MAP_FAILED_ = 205,
       ALREADY_MAPPED = 208, INVALID_PTX = 218, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700,
       ALREADY_REGISTERED = 712, NOT_REGISTERED = 713, LAUNCH_FAILED = 719 };

// Words of the control page. The order is control.go's.
enum { GATE, AT_GATE, FAULT_CODE, FAULT_AFTER, FAULT_STAYS, LOST, AFTER_LOSS, DEVICES, DIRTY_FROM, DIRTY_TO, VIOLATIONS, CONTEXTS, STREAMS, EVENTS,
       FOREIGN_EVENTS, MAPPINGS, CHUNKS, REGISTERED, REGISTERED_BYTES, HOST_ALLOCS, ALLOCS, MODULES, LAUNCHES, BATCHES, COPIES, MOVED_BYTES, RECORDS,
       LARGEST_LAUNCH, WORDS };
enum { HOLD = 1 << 30 }; // as a fault's code
enum { PAGE_BYTES = 4096, FAULT_CALL_AT = 2048, VIOLATION_AT = 2560 };

static unsigned char *page;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;   // of everything below
static pthread_mutex_t moving = PTHREAD_MUTEX_INITIALIZER; // while bytes are moved
static int initialised;

#define WORD(i) ((_Atomic uint64_t *)page)[i]

static void violation(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  if (atomic_fetch_add(&WORD(VIOLATIONS), 1) == 0) {
    vsnprintf((char *)page + VIOLATION_AT, PAGE_BYTES - VIOLATION_AT, format, arguments);
  }
  va_end(arguments);
}

static void lose(int code) {
  uint64_t none = 0;
  atomic_compare_exchange_strong(&WORD(LOST), &none, (uint64_t)code);
}

// settle waits, in a context that is lost, for what was moving bytes when it was: a
// driver ends that before it says so.
static void settle(void) {
  if (atomic_load(&WORD(LOST)) == 0) return;
  pthread_mutex_lock(&moving);
  pthread_mutex_unlock(&moving);
}

// fault says whether this call is to fail, and with what.
static int fault(const char *call) {
  if (page == NULL || atomic_load(&WORD(FAULT_CODE)) == 0 || strcmp(call, (char *)page + FAULT_CALL_AT) != 0) {
    return OK;
  }
  if (atomic_load(&WORD(FAULT_AFTER)) > 0) {
    atomic_fetch_sub(&WORD(FAULT_AFTER), 1);
    return OK;
  }
  int code = (int)atomic_load(&WORD(FAULT_CODE));
  if (code == HOLD) { // it takes as long as the test wants
    while ((code = (int)atomic_load(&WORD(FAULT_CODE))) == HOLD) usleep(100);
    if (code != OK) atomic_store(&WORD(FAULT_CODE), 0);
    return code;
  }
  if (atomic_load(&WORD(FAULT_STAYS)) == 0) {
    atomic_store(&WORD(FAULT_CODE), 0);
  } else if (code >= ILLEGAL_ADDRESS && code <= LAUNCH_FAILED) {
    lose(code);
    settle();
  }
  return code;
}

static __thread void *current;
static char the_context;

// BEGIN opens a call that needs a context; giving back works after a loss, too.
#define BEGIN(gives_back)                                                      \
  do {                                                                         \
    int code_ = fault(__func__);                                               \
    if (code_ != OK) return code_;                                             \
    if (current != &the_context || atomic_load(&WORD(CONTEXTS)) == 0) {        \
      violation("%s without a context", __func__);                             \
      return INVALID_CONTEXT;                                                  \
    }                                                                          \
    if (atomic_load(&WORD(LOST)) != 0) {                                       \
      if (!(gives_back)) atomic_fetch_add(&WORD(AFTER_LOSS), 1);               \
      if (!(gives_back)) return (int)atomic_load(&WORD(LOST));                 \
    }                                                                          \
  } while (0)

// ---- memory ----

typedef struct {
  char magic[8];
  int32_t kind, pid, fd, pad;
  uint64_t bytes, serial;
  char rest[24];
} handle;
_Static_assert(sizeof(handle) == 64, "a handle has 64 bytes");
enum { MEMORY = 1, EVENT = 2, CHUNK = 3 };
static const char magic[8] = "cudadbl";

enum { OWN = 1, FOREIGN, RESERVED, PINNED, HOST };
static const char *const kinds[] = {"", "allocation", "mapping", "reservation", "registration", "host allocation"};

typedef struct range {
  struct range *next;
  int kind, fd;
  uint64_t at, bytes, serial; // at without the tag
  int32_t pid, peer_fd;
} range;
static range *ranges;

typedef struct chunk {
  struct chunk *next;
  uint64_t id, bytes, offset; // in the file
  int fd, references, fabric;
} chunk;
typedef struct piece {
  struct piece *next;
  uint64_t at, bytes;
  int accessible;
  chunk *chunk;
} piece; // a mapped chunk
static chunk *chunks;
static piece *pieces;
static uint64_t serials = 1;

static range *find(int kind, uint64_t at) {
  for (range *r = ranges; r != NULL; r = r->next) {
    if ((kind == 0 || r->kind == kind) && at >= r->at && at < r->at + r->bytes) return r;
  }
  return NULL;
}

static range *add(int kind, void *memory, uint64_t bytes, int fd) {
  range *r = calloc(1, sizeof *r);
  r->kind = kind, r->fd = fd, r->at = (uint64_t)(uintptr_t)memory, r->bytes = bytes, r->serial = serials++;
  r->next = ranges;
  return ranges = r;
}

static void drop(range *gone) {
  for (range **r = &ranges; *r != NULL; r = &(*r)->next) {
    if (*r == gone) {
      *r = gone->next;
      free(gone);
      return;
    }
  }
}

// reachable checks that the device may touch a range; the host's pointer, or NULL.
static void *reachable(uint64_t address, uint64_t bytes, int reads) {
  if (!(address & TAG)) {
    violation("%#lx is no address of the device", (unsigned long)address);
    return NULL;
  }
  uint64_t at = address & ~TAG;
  void *found = NULL;
  pthread_mutex_lock(&lock);
  for (range *r = ranges; r != NULL && found == NULL; r = r->next) {
    if (at < r->at || at + bytes > r->at + r->bytes) continue;
    if (r->kind == RESERVED) {
      uint64_t reached = at;
      for (piece *p = pieces; p != NULL;) { // chunks may be in any order
        if (p->accessible && reached >= p->at && reached < p->at + p->bytes) {
          reached = p->at + p->bytes;
          p = reached >= at + bytes ? NULL : pieces;
          continue;
        }
        p = p->next;
      }
      if (reached < at + bytes) continue;
    }
    if (reads && (r->kind == FOREIGN || r->kind == RESERVED) && at - r->at < atomic_load(&WORD(DIRTY_TO)) &&
        at - r->at + bytes > atomic_load(&WORD(DIRTY_FROM))) {
      violation("%lu bytes at %lu were read before the engine had written them", (unsigned long)bytes, (unsigned long)(at - r->at));
    }
    found = (void *)(uintptr_t)at;
  }
  if (found == NULL) violation("%lu bytes at %#lx are not the device's to touch", (unsigned long)bytes, (unsigned long)address);
  pthread_mutex_unlock(&lock);
  return found;
}

static int allocate(int kind, uint64_t bytes, void **memory) {
  int fd = kind == OWN ? (int)syscall(SYS_memfd_create, "cuda-double", 1u) : -1;
  void *m = MAP_FAILED;
  if (kind != OWN || (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0)) {
    m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
  }
  if (m == MAP_FAILED) {
    if (fd >= 0) close(fd);
    return NO_MEMORY;
  }
  pthread_mutex_lock(&lock);
  add(kind, m, bytes, fd);
  pthread_mutex_unlock(&lock);
  *memory = m;
  return OK;
}

static int release(int kind, uint64_t at) {
  settle();
  pthread_mutex_lock(&lock);
  range *r = find(kind, at);
  if (r == NULL || r->at != at) {
    violation("%#lx is no %s that could be given back", (unsigned long)at, kinds[kind]);
    pthread_mutex_unlock(&lock);
    return INVALID_VALUE;
  }
  if (kind != PINNED) munmap((void *)(uintptr_t)r->at, r->bytes);
  if (r->fd >= 0) close(r->fd);
  drop(r);
  pthread_mutex_unlock(&lock);
  return OK;
}

EXPORT int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
  BEGIN(0);
  void *memory;
  if (bytes == 0) return INVALID_VALUE;
  int code = allocate(OWN, bytes, &memory);
  if (code == OK) {
    *address = (uint64_t)(uintptr_t)memory | TAG;
    atomic_fetch_add(&WORD(ALLOCS), 1);
  }
  return code;
}

EXPORT int cuMemFree_v2(uint64_t address) {
  BEGIN(1);
  int code = release(OWN, address & ~TAG);
  if (code == OK) atomic_fetch_sub(&WORD(ALLOCS), 1);
  return code;
}

EXPORT int cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t address) {
  BEGIN(0);
  int code = NOT_FOUND;
  pthread_mutex_lock(&lock);
  uint64_t at = address & ~TAG;
  range *r = (address & TAG) ? find(0, at) : NULL;
  if (r != NULL && r->kind == RESERVED) { // the driver speaks of the chunk
    for (piece *p = pieces; p != NULL; p = p->next) {
      if (at >= p->at && at < p->at + p->bytes) *base = p->at | TAG, *bytes = p->bytes, code = OK;
    }
  } else if (r != NULL) {
    *base = r->at | TAG, *bytes = r->bytes, code = OK;
  }
  pthread_mutex_unlock(&lock);
  return code;
}

EXPORT int cuIpcGetMemHandle(handle *h, uint64_t address) {
  BEGIN(0);
  pthread_mutex_lock(&lock);
  range *r = find(OWN, address & ~TAG);
  if (r != NULL) {
    memset(h, 0, sizeof *h);
    memcpy(h->magic, magic, sizeof magic);
    h->kind = MEMORY, h->pid = getpid(), h->fd = r->fd, h->bytes = r->bytes, h->serial = r->serial;
  }
  pthread_mutex_unlock(&lock);
  return r != NULL ? OK : INVALID_VALUE;
}

static int open_peer(const handle *h) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", h->pid, h->fd);
  return open(path, O_RDWR | O_CLOEXEC);
}

static void *map_peer(const handle *h, int kind) {
  if (memcmp(h->magic, magic, sizeof magic) != 0 || h->kind != kind || h->bytes == 0) return NULL;
  int fd = open_peer(h);
  if (fd < 0) return NULL;
  void *memory = mmap(NULL, h->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return memory == MAP_FAILED ? NULL : memory;
}

EXPORT int cuIpcOpenMemHandle_v2(uint64_t *address, handle h, unsigned flags) {
  BEGIN(0);
  if (flags != 1) return INVALID_VALUE;
  pthread_mutex_lock(&lock);
  for (range *r = ranges; r != NULL; r = r->next) {
    if (r->kind == FOREIGN && r->pid == h.pid && r->peer_fd == h.fd && r->serial == h.serial) {
      violation("an allocation is mapped twice");
      pthread_mutex_unlock(&lock);
      return ALREADY_MAPPED;
    }
  }
  void *memory = map_peer(&h, MEMORY);
  if (memory != NULL) {
    range *r = add(FOREIGN, memory, h.bytes, -1);
    r->pid = h.pid, r->peer_fd = h.fd, r->serial = h.serial;
    *address = r->at | TAG;
    atomic_fetch_add(&WORD(MAPPINGS), 1);
  }
  pthread_mutex_unlock(&lock);
  return memory != NULL ? OK : MAP_FAILED_;
}

EXPORT int cuIpcCloseMemHandle(uint64_t address) {
  BEGIN(1);
  int code = release(FOREIGN, address & ~TAG);
  if (code == OK) atomic_fetch_sub(&WORD(MAPPINGS), 1);
  return code;
}

EXPORT int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
  BEGIN(0);
  if (flags != 2 || bytes == 0) return INVALID_VALUE;
  int code = allocate(HOST, bytes, memory);
  if (code == OK) atomic_fetch_add(&WORD(HOST_ALLOCS), 1);
  return code;
}

EXPORT int cuMemFreeHost(void *memory) {
  BEGIN(1);
  int code = release(HOST, (uint64_t)(uintptr_t)memory);
  if (code == OK) atomic_fetch_sub(&WORD(HOST_ALLOCS), 1);
  return code;
}

EXPORT int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags) {
  BEGIN(0);
  uint64_t at = (uint64_t)(uintptr_t)memory;
  if (flags != 2 || bytes == 0) return INVALID_VALUE;
  // The driver takes whole pages: a neighbour in the last one would be refused.
  if (at % PAGE_BYTES != 0 || bytes % PAGE_BYTES != 0) violation("%lu bytes at %#lx are registered, which are no pages", (unsigned long)bytes, (unsigned long)at);
  int code = OK;
  pthread_mutex_lock(&lock);
  for (range *r = ranges; r != NULL; r = r->next) {
    if (r->kind == PINNED && at < r->at + r->bytes && at + bytes > r->at) code = ALREADY_REGISTERED;
  }
  if (code == OK) {
    add(PINNED, memory, bytes, -1);
    atomic_fetch_add(&WORD(REGISTERED), 1);
    atomic_fetch_add(&WORD(REGISTERED_BYTES), bytes);
  }
  pthread_mutex_unlock(&lock);
  return code;
}

EXPORT int cuMemHostUnregister(void *memory) {
  BEGIN(1);
  pthread_mutex_lock(&lock);
  range *r = find(PINNED, (uint64_t)(uintptr_t)memory);
  uint64_t bytes = r != NULL ? r->bytes : 0;
  pthread_mutex_unlock(&lock);
  if (release(PINNED, (uint64_t)(uintptr_t)memory) != OK) return NOT_REGISTERED;
  atomic_fetch_sub(&WORD(REGISTERED), 1);
  atomic_fetch_sub(&WORD(REGISTERED_BYTES), bytes);
  return OK;
}

EXPORT int cuMemHostGetDevicePointer_v2(uint64_t *address, void *memory, unsigned flags) {
  BEGIN(0);
  (void)flags;
  uint64_t at = (uint64_t)(uintptr_t)memory;
  pthread_mutex_lock(&lock);
  int known = find(PINNED, at) != NULL || find(HOST, at) != NULL;
  pthread_mutex_unlock(&lock);
  *address = at | TAG;
  return known ? OK : INVALID_VALUE;
}

// ---- chunks ----

#ifndef WITHOUT_CHUNKS
typedef struct {
  int type, handle_types, location_type, location_id;
  void *windows;
  unsigned char flags[8];
} properties;

static chunk *chunk_of(uint64_t id) {
  for (chunk *c = chunks; c != NULL; c = c->next) {
    if (c->id == id) return c;
  }
  return NULL;
}

static void unref(chunk *c) {
  if (--c->references > 0) return;
  for (chunk **p = &chunks; *p != NULL; p = &(*p)->next) {
    if (*p == c) {
      *p = c->next;
      close(c->fd);
      free(c);
      return;
    }
  }
}

static uint64_t add_chunk(int fd, uint64_t bytes, uint64_t offset) {
  chunk *c = calloc(1, sizeof *c);
  c->id = serials++, c->bytes = bytes, c->offset = offset, c->fd = fd, c->references = 1;
  c->next = chunks;
  chunks = c;
  return c->id;
}

EXPORT int cuMemCreate(uint64_t *id, size_t bytes, const properties *p, unsigned long long flags) {
  BEGIN(0);
  (void)flags;
  int fd = (int)syscall(SYS_memfd_create, "cuda-double-chunk", 1u);
  if (fd < 0 || ftruncate(fd, (off_t)bytes) != 0) return NO_MEMORY;
  pthread_mutex_lock(&lock);
  *id = add_chunk(fd, bytes, 0);
  // One that nobody may have is told by its size being odd: there is nowhere else to keep it.
  if (!(p->handle_types & (1 | 8))) chunks->bytes |= 1;
  chunks->fabric = p->handle_types == 8;
  pthread_mutex_unlock(&lock);
  return OK;
}

EXPORT int cuMemRetainAllocationHandle(uint64_t *id, void *address) {
  BEGIN(0);
  uint64_t at = (uint64_t)(uintptr_t)address & ~TAG;
  int code = INVALID_VALUE;
  pthread_mutex_lock(&lock);
  for (piece *p = pieces; p != NULL && code != OK; p = p->next) {
    if (at >= p->at && at < p->at + p->bytes) {
      p->chunk->references++;
      *id = p->chunk->id;
      code = OK;
    }
  }
  pthread_mutex_unlock(&lock);
  return code;
}

EXPORT int cuMemExportToShareableHandle(void *out, uint64_t id, int type, unsigned long long flags) {
  BEGIN(0);
  pthread_mutex_lock(&lock);
  chunk *c = chunk_of(id);
  int shared = c != NULL && flags == 0 && !(c->bytes & 1) && type == (c->fabric ? 8 : 1);
  int fd = shared && type == 1 ? fcntl(c->fd, F_DUPFD_CLOEXEC, 0) : -1;
  if (shared && type == 8) {
    handle *h = out;
    memset(h, 0, sizeof *h);
    memcpy(h->magic, magic, sizeof magic);
    h->kind = CHUNK, h->pid = getpid(), h->fd = c->fd, h->bytes = c->bytes;
  }
  pthread_mutex_unlock(&lock);
  if (shared && type == 1) memcpy(out, &fd, sizeof fd);
  return shared && (type == 8 || fd >= 0) ? OK : INVALID_VALUE;
}

EXPORT int cuMemImportFromShareableHandle(uint64_t *id, void *descriptor, int type) {
  BEGIN(0);
  int fd = -1;
  if (type == 8) {
    const handle *h = descriptor;
    if (memcmp(h->magic, magic, sizeof magic) == 0 && h->kind == CHUNK) fd = open_peer(h);
  } else if (type == 1) {
    fd = fcntl((int)(intptr_t)descriptor, F_DUPFD_CLOEXEC, 0);
  }
  if (fd < 0) return INVALID_VALUE;
  // The position says which part of the file it is: its page, and 32 bits of its
  // length. One at the beginning is the whole file.
  off_t position = lseek(fd, 0, SEEK_CUR);
  struct stat file;
  uint64_t offset = (uint64_t)position >> 32 << 12, bytes = (uint32_t)position;
  if (position < 0 || fstat(fd, &file) != 0 || offset + bytes > (uint64_t)file.st_size || file.st_size == 0) {
    close(fd);
    return INVALID_VALUE;
  }
  pthread_mutex_lock(&lock);
  *id = add_chunk(fd, position == 0 ? (uint64_t)file.st_size : bytes, offset);
  pthread_mutex_unlock(&lock);
  return OK;
}

EXPORT int cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t wanted, unsigned long long flags) {
  BEGIN(0);
  (void)alignment, (void)wanted, (void)flags;
  void *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return NO_MEMORY;
  pthread_mutex_lock(&lock);
  *address = add(RESERVED, memory, bytes, -1)->at | TAG;
  pthread_mutex_unlock(&lock);
  return OK;
}

EXPORT int cuMemAddressFree(uint64_t address, size_t bytes) {
  BEGIN(1);
  pthread_mutex_lock(&lock);
  for (piece *p = pieces; p != NULL; p = p->next) {
    if (p->at >= (address & ~TAG) && p->at < (address & ~TAG) + bytes) violation("a reservation was freed with a chunk in it");
  }
  pthread_mutex_unlock(&lock);
  return release(RESERVED, address & ~TAG);
}

EXPORT int cuMemMap(uint64_t address, size_t bytes, size_t offset, uint64_t id, unsigned long long flags) {
  BEGIN(0);
  int code = INVALID_VALUE;
  pthread_mutex_lock(&lock);
  chunk *c = chunk_of(id);
  range *r = find(RESERVED, address & ~TAG);
  if (c != NULL && r != NULL && offset == 0 && flags == 0 && bytes == (c->bytes & ~(uint64_t)1) && (address & ~TAG) + bytes <= r->at + r->bytes &&
      mmap((void *)(uintptr_t)(address & ~TAG), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, c->fd, (off_t)c->offset) != MAP_FAILED) {
    piece *p = calloc(1, sizeof *p);
    p->at = address & ~TAG, p->bytes = bytes, p->chunk = c, p->next = pieces;
    pieces = p;
    c->references++;
    atomic_fetch_add(&WORD(CHUNKS), 1);
    code = OK;
  }
  pthread_mutex_unlock(&lock);
  return code;
}

EXPORT int cuMemUnmap(uint64_t address, size_t bytes) {
  BEGIN(1);
  settle();
  int code = INVALID_VALUE;
  pthread_mutex_lock(&lock);
  for (piece **p = &pieces; *p != NULL; p = &(*p)->next) {
    if ((*p)->at == (address & ~TAG) && (*p)->bytes == bytes) {
      piece *gone = *p;
      *p = gone->next;
      mmap((void *)(uintptr_t)gone->at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
      unref(gone->chunk);
      free(gone);
      atomic_fetch_sub(&WORD(CHUNKS), 1);
      code = OK;
      break;
    }
  }
  if (code != OK) violation("an unmapping of what is not mapped");
  pthread_mutex_unlock(&lock);
  return code;
}

EXPORT int cuMemSetAccess(uint64_t address, size_t bytes, const int *access, size_t n) {
  BEGIN(0);
  if (n != 1 || access[0] != 1 || access[2] != 3) return INVALID_VALUE;
  pthread_mutex_lock(&lock);
  for (piece *p = pieces; p != NULL; p = p->next) {
    if (p->at >= (address & ~TAG) && p->at + p->bytes <= (address & ~TAG) + bytes) p->accessible = 1;
  }
  pthread_mutex_unlock(&lock);
  return OK;
}

EXPORT int cuMemRelease(uint64_t id) {
  BEGIN(1);
  pthread_mutex_lock(&lock);
  chunk *c = chunk_of(id);
  if (c != NULL) unref(c);
  pthread_mutex_unlock(&lock);
  return c != NULL ? OK : INVALID_VALUE;
}
#endif

// ---- streams and events ----

// point is what an event has recorded and what of it is done; another process maps it.
typedef struct {
  _Atomic uint64_t recorded, done;
} point;
typedef struct {
  point *point;
  int fd; // -1: of another process
  unsigned flags;
} event;

typedef struct tile {
  uint64_t to, from;
  uint32_t bytes, pad;
} tile;

typedef struct work {
  struct work *next;
  enum { COPY, KERNEL, RECORD } kind;
  uint64_t to, from, bytes; // of a kernel: the list is at from, its length is bytes
  point *point;
  uint64_t number;
} work;

typedef struct {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  work *first, **last;
  int stop, busy;
} stream;

static void move(uint64_t to, uint64_t from, uint64_t bytes) {
  void *d = reachable(to, bytes, 0), *s = reachable(from, bytes, 1);
  if (d == NULL || s == NULL) {
    lose(ILLEGAL_ADDRESS);
    return;
  }
  memcpy(d, s, bytes);
  atomic_fetch_add(&WORD(MOVED_BYTES), bytes);
}

static void await_gate(void) {
  if (atomic_load(&WORD(GATE)) == 0) return;
  atomic_fetch_add(&WORD(AT_GATE), 1);
  while (atomic_load(&WORD(GATE)) != 0) usleep(100);
  atomic_fetch_sub(&WORD(AT_GATE), 1);
}

static void carry_out(work *w) {
  if (w->kind == COPY) {
    move(w->to, w->from, w->bytes);
    return;
  }
  const tile *list = reachable(w->from, w->bytes * sizeof(tile), 1);
  for (uint64_t i = 0; list != NULL && i < w->bytes; i++) {
    if (list[i].bytes == 0) violation("an empty tile");
    move(list[i].to, list[i].from, list[i].bytes);
  }
  if (list == NULL) lose(ILLEGAL_ADDRESS);
}

static void perform(work *w) {
  if (w->kind == RECORD) {
    atomic_store(&w->point->done, w->number); // the point may be unmapped from here on
    atomic_fetch_add(&WORD(RECORDS), 1);
    return;
  }
  await_gate();
  pthread_mutex_lock(&moving);
  if (atomic_load(&WORD(LOST)) == 0) carry_out(w);
  pthread_mutex_unlock(&moving);
}

static void *run(void *argument) {
  stream *s = argument;
  pthread_mutex_lock(&s->mutex);
  while (!s->stop || s->first != NULL) {
    if (s->first == NULL) {
      pthread_cond_wait(&s->changed, &s->mutex);
      continue;
    }
    work *w = s->first;
    s->first = w->next;
    if (s->first == NULL) s->last = &s->first;
    s->busy = w->kind != RECORD; // who has seen an event may destroy the stream at once
    pthread_mutex_unlock(&s->mutex);
    perform(w);
    free(w);
    pthread_mutex_lock(&s->mutex);
    s->busy = 0;
  }
  pthread_mutex_unlock(&s->mutex);
  return NULL;
}

static work *enqueue(stream *s, work value) {
  work *w = malloc(sizeof *w);
  *w = value, w->next = NULL;
  pthread_mutex_lock(&s->mutex);
  if (w->kind == RECORD) w->number = atomic_fetch_add(&w->point->recorded, 1) + 1;
  *s->last = w, s->last = &w->next;
  pthread_cond_signal(&s->changed);
  pthread_mutex_unlock(&s->mutex);
  return w;
}

EXPORT int cuStreamCreateWithPriority(stream **out, unsigned flags, int priority) {
  BEGIN(0);
  if (flags != 1) violation("a stream that waits for others");
  if (priority != 0) violation("a stream of priority %d", priority);
  stream *s = calloc(1, sizeof *s);
  pthread_mutex_init(&s->mutex, NULL);
  pthread_cond_init(&s->changed, NULL);
  s->last = &s->first;
  if (pthread_create(&s->thread, NULL, run, s) != 0) return NO_MEMORY;
  atomic_fetch_add(&WORD(STREAMS), 1);
  *out = s;
  return OK;
}

EXPORT int cuStreamDestroy_v2(stream *s) {
  BEGIN(1);
  pthread_mutex_lock(&s->mutex);
  if ((s->first != NULL || s->busy) && atomic_load(&WORD(LOST)) == 0) violation("a stream was destroyed with work in it");
  s->stop = 1;
  pthread_cond_signal(&s->changed);
  pthread_mutex_unlock(&s->mutex);
  pthread_join(s->thread, NULL);
  pthread_mutex_destroy(&s->mutex);
  pthread_cond_destroy(&s->changed);
  free(s);
  atomic_fetch_sub(&WORD(STREAMS), 1);
  return OK;
}

EXPORT int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  BEGIN(0);
  *least = 0, *greatest = -5;
  return OK;
}

static int new_event(event **out, point *p, int fd, unsigned flags) {
  event *e = calloc(1, sizeof *e);
  e->point = p, e->fd = fd, e->flags = flags;
  *out = e;
  return OK;
}

EXPORT int cuEventCreate(event **out, unsigned flags) {
  BEGIN(0);
  int fd = (int)syscall(SYS_memfd_create, "cuda-double-event", 1u);
  if (fd < 0 || ftruncate(fd, PAGE_BYTES) != 0) return NO_MEMORY;
  point *p = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) return NO_MEMORY;
  atomic_fetch_add(&WORD(EVENTS), 1);
  return new_event(out, p, fd, flags);
}

EXPORT int cuIpcGetEventHandle(handle *h, event *e) {
  BEGIN(0);
  if ((e->flags & 6) != 6) return INVALID_VALUE; // CU_EVENT_INTERPROCESS and CU_EVENT_DISABLE_TIMING
  memset(h, 0, sizeof *h);
  memcpy(h->magic, magic, sizeof magic);
  h->kind = EVENT, h->pid = getpid(), h->fd = e->fd, h->bytes = PAGE_BYTES;
  return OK;
}

EXPORT int cuIpcOpenEventHandle(event **out, handle h) {
  BEGIN(0);
  point *p = h.bytes == PAGE_BYTES ? map_peer(&h, EVENT) : NULL;
  if (p == NULL) return MAP_FAILED_;
  atomic_fetch_add(&WORD(FOREIGN_EVENTS), 1);
  return new_event(out, p, -1, 6);
}

EXPORT int cuEventDestroy_v2(event *e) {
  BEGIN(1);
  atomic_fetch_sub(e->fd >= 0 ? &WORD(EVENTS) : &WORD(FOREIGN_EVENTS), 1);
  if (e->fd < 0 || atomic_load(&e->point->done) >= atomic_load(&e->point->recorded)) {
    munmap(e->point, PAGE_BYTES);
  } else if (atomic_load(&WORD(LOST)) == 0) {
    violation("an event was destroyed before it has happened"); // the stream still writes there: it stays mapped
  }
  if (e->fd >= 0) close(e->fd);
  free(e);
  return OK;
}

EXPORT int cuEventRecord(event *e, stream *s) {
  BEGIN(0);
  if (s == NULL) { // the default stream has done all there is
    atomic_store(&e->point->done, atomic_fetch_add(&e->point->recorded, 1) + 1);
    return OK;
  }
  enqueue(s, (work){.kind = RECORD, .point = e->point});
  return OK;
}

static int query(event *e) {
  if (atomic_load(&WORD(LOST)) != 0) return (int)atomic_load(&WORD(LOST));
  return atomic_load(&e->point->done) >= atomic_load(&e->point->recorded) ? OK : NOT_READY;
}

EXPORT int cuEventQuery(event *e) {
  BEGIN(1);
  return query(e);
}

EXPORT int cuEventSynchronize(event *e) {
  BEGIN(1);
  int code;
  while ((code = query(e)) == NOT_READY) usleep(50);
  return code;
}

EXPORT int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, stream *s) {
  BEGIN(0);
  atomic_fetch_add(&WORD(COPIES), 1);
  enqueue(s, (work){.kind = COPY, .to = to, .from = from, .bytes = bytes});
  return OK;
}

#ifndef WITHOUT_BATCH
EXPORT int cuMemcpyBatchAsync(uint64_t *to, uint64_t *from, size_t *bytes, size_t n, const int *attributes, size_t *first, size_t attribute_count,
                              size_t *failed, stream *s) {
  BEGIN(0);
  if (s == NULL || n == 0 || failed == NULL || attribute_count != 1 || first[0] != 0 || attributes[0] != 1) return INVALID_VALUE;
  for (*failed = 0; *failed < n; ++*failed) {
    if (bytes[*failed] == 0) return INVALID_VALUE;
  }
  atomic_fetch_add(&WORD(BATCHES), 1);
  for (size_t i = 0; i < n; i++) {
    atomic_fetch_add(&WORD(COPIES), 1);
    enqueue(s, (work){.kind = COPY, .to = to[i], .from = from[i], .bytes = bytes[i]});
  }
  return OK;
}
#endif

// ---- modules ----

EXPORT int cuModuleLoadDataEx(void **module, const void *image, unsigned options, int *names, void **values) {
  BEGIN(0);
  (void)names, (void)values;
  if (options != 0 || strstr(image, ".entry mooncake_copy(") == NULL) return INVALID_PTX;
  *module = strdup("module");
  atomic_fetch_add(&WORD(MODULES), 1);
  return OK;
}

EXPORT int cuModuleUnload(void *module) {
  BEGIN(1);
  free(module);
  atomic_fetch_sub(&WORD(MODULES), 1);
  return OK;
}

EXPORT int cuModuleGetFunction(void **function, void *module, const char *name) {
  BEGIN(0);
  if (strcmp(name, "mooncake_copy") != 0) return NOT_FOUND;
  *function = module;
  return OK;
}

EXPORT int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, stream *s,
                          void **arguments, void **extra) {
  BEGIN(0);
  if (function == NULL || gx == 0 || gy != 1 || gz != 1 || bx == 0 || bx % 32 != 0 || bx > 1024 || by != 1 || bz != 1 || shared != 0 || extra != NULL) {
    return INVALID_VALUE;
  }
  atomic_fetch_add(&WORD(LAUNCHES), 1);
  for (uint64_t before = atomic_load(&WORD(LARGEST_LAUNCH)); before < (uint64_t)gx * bx;) {
    if (atomic_compare_exchange_weak(&WORD(LARGEST_LAUNCH), &before, (uint64_t)gx * bx)) break;
  }
  enqueue(s, (work){.kind = KERNEL, .from = *(uint64_t *)arguments[0], .bytes = *(uint32_t *)arguments[1]});
  return OK;
}

// ---- the driver, devices, contexts ----

EXPORT int cuInit(unsigned flags) {
  pthread_mutex_lock(&lock);
  if (page == NULL) {
    const char *path = getenv("CUDA_DOUBLE_CONTROL");
    int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
    page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
    if (fd >= 0) close(fd);
  }
  initialised = 1;
  pthread_mutex_unlock(&lock);
  int code = fault(__func__);
  return code != OK ? code : flags == 0 ? OK : INVALID_VALUE;
}

EXPORT int cuDriverGetVersion(int *version) {
  *version = 12080;
  return OK;
}

static int devices(void) { return initialised ? (int)atomic_load(&WORD(DEVICES)) + 1 : 0; }

EXPORT int cuDeviceGetCount(int *n) {
  *n = devices();
  return initialised ? fault(__func__) : NOT_INITIALIZED;
}

EXPORT int cuDeviceGet(int *device, int i) {
  *device = i;
  return i < devices() ? OK : INVALID_DEVICE;
}

EXPORT int cuDeviceGetName(char *name, int bytes, int device) {
  snprintf(name, (size_t)bytes, "Double %d", device);
  return OK;
}

EXPORT int cuDeviceGetUuid_v2(char *uuid, int device) {
  memset(uuid, 0xd0, 16);
  uuid[15] = (char)device;
  return OK;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  *value = attribute == 16 ? 132 : 1;
  return OK;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
  int code = fault(__func__);
  if (code != OK) return code;
  if (device >= devices()) return INVALID_DEVICE;
  if (atomic_load(&WORD(LOST)) != 0) return (int)atomic_load(&WORD(LOST));
  atomic_fetch_add(&WORD(CONTEXTS), 1);
  *context = &the_context;
  return OK;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
  (void)device;
  static const int owned[] = {STREAMS, EVENTS, FOREIGN_EVENTS, MAPPINGS, CHUNKS, REGISTERED, HOST_ALLOCS, ALLOCS, MODULES};
  if (atomic_fetch_sub(&WORD(CONTEXTS), 1) > 1) return OK;
  for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
    if (atomic_load(&WORD(owned[i])) != 0) violation("a context was released with %lu of word %d left", (unsigned long)atomic_load(&WORD(owned[i])), owned[i]);
  }
  return fault(__func__);
}

EXPORT int cuCtxSetCurrent(void *context) {
  current = context;
  return OK;
}

EXPORT int cuGetErrorName(int code, const char **name) {
  switch (code) {
  case INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
  case NO_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
  case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
  case MAP_FAILED_: *name = "CUDA_ERROR_MAP_FAILED"; break;
  case ILLEGAL_ADDRESS: *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; break;
  case LAUNCH_FAILED: *name = "CUDA_ERROR_LAUNCH_FAILED"; break;
  default: return INVALID_VALUE;
  }
  return OK;
}

EXPORT int cuGetErrorString(int code, const char **text) {
  const char *name;
  if (cuGetErrorName(code, &name) != OK) return INVALID_VALUE;
  *text = "made by the double";
  return OK;
}
