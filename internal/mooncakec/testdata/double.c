// A test double of libmooncake_store.so: the semantics of Mooncake's C library over
// plain memory. Clients of one master's address share objects, as those of several
// nodes do.
//
// The metadata server's address has options, with blanks between:
//
//	strict=1        ranges outside registered memory are refused (-600), as RDMA does
//	capacity=BYTES  objects beyond it are refused (-200)
//	lease_ms=MS     what was asked for or got has a lease for so long
//	register=CODE   registration fails
//	setup=CODE      the setup fails
//	stop=PATH       calls hang while that file exists, and so does the setup
//	gone=PATH       the master is gone while that file exists: -900
//	closed=PATH     the client says that it is not set up while that file exists
//
// Parts of keys say what else a call does:
//
//	@hang        it hangs while the file of stop= exists
//	@code-704    the key's answer
//	@call-1      the call fails as a whole
//	@silent      nothing is answered
//	@longer      a get answers more bytes than it was given
//	@goeson      a get fails (-800) and its range is written to until the client's end
//	@torn        a get loses its lease (-707) half way
//
// The keys "double@stats" and "double@how@KEY" are texts about the library, and of
// how KEY is to be kept.
//
// Built with SOFT_PIN_ACTION, NO_PINS, WITHOUT_... and SIGNALS_ALWAYS it is another
// library: see the tests.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <regex.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct how {
  size_t replica_num;
#ifdef SOFT_PIN_ACTION
  int with_hard_pin;
#else
  int with_soft_pin;
  int with_hard_pin;
#endif
  const char **preferred_segments;
  size_t preferred_segments_count;
#ifdef SOFT_PIN_ACTION
  int soft_pin_action;
  int has_soft_pin_ttl;
  uint64_t soft_pin_ttl_ms;
#endif
};

struct object {
  struct object *next;
  char *key, *how;
  unsigned char *bytes;
  size_t size;
  int64_t leased_until_ms;
};

struct cluster {
  struct cluster *next;
  char *master;
  struct object *objects;
  size_t capacity, used;
  int64_t lease_ms;
};

struct region {
  struct region *next;
  const unsigned char *at;
  size_t size;
};

struct writer { // goes on with a transfer that was given up
  struct writer *next;
  pthread_t thread;
  unsigned char *at;
  size_t size;
  volatile bool stop;
};

struct client {
  struct cluster *cluster;
  struct region *regions;
  struct writer *writers;
  bool strict;
  char *stop, *gone, *closed;
  int register_code;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cluster *clusters;
static long creates, destroys, signal_threads, registered_bytes, calls;

static int64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void doze(void) { usleep(1000); }

static bool exists(const char *path) { return path != NULL && access(path, F_OK) == 0; }

// option returns a copy of an option's value, NULL when it is not there.
static char *option(const char *options, const char *name) {
  size_t n = strlen(name);
  for (const char *at = options; (at = strstr(at, name)) != NULL; at += n) {
    if ((at == options || at[-1] == ' ') && at[n] == '=') {
      return strndup(at + n + 1, strcspn(at + n + 1, " "));
    }
  }
  return NULL;
}

static long number(const char *options, const char *name) {
  char *value = option(options, name);
  long n = value != NULL ? atol(value) : 0;
  free(value);
  return n;
}

static void *take_signals(void *set) {
  int sig;
  sigwait(set, &sig);
  signal(sig, SIG_DFL);
  raise(sig);
  return NULL;
}

// The process's signals are taken once, unless it is Python's.
static void begin_signals(void) {
  static bool begun;
  static sigset_t set;
  bool python = dlsym(RTLD_DEFAULT, "Py_IsInitialized") != NULL;
#ifdef SIGNALS_ALWAYS
  python = false;
#endif
  if (begun || python) {
    return;
  }
  begun = true;
  signal_threads++;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGHUP);
  sigaddset(&set, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  pthread_t thread;
  pthread_create(&thread, NULL, take_signals, &set);
  pthread_detach(thread);
}

void *mooncake_store_create(void) {
  pthread_mutex_lock(&lock);
  creates++;
  begin_signals();
  pthread_mutex_unlock(&lock);
  return calloc(1, sizeof(struct client));
}

void mooncake_store_destroy(void *store) {
  struct client *c = store;
  while (exists(c->stop)) {
    doze();
  }
  for (struct writer *w = c->writers, *next; w != NULL; w = next) {
    next = w->next;
    w->stop = true;
    pthread_join(w->thread, NULL);
    free(w);
  }
  for (struct region *r = c->regions, *next; r != NULL; r = next) {
    next = r->next;
    free(r);
  }
  free(c->stop);
  free(c->gone);
  free(c->closed);
  memset(c, 0xdb, sizeof *c); // who goes on with it does not get far
  free(c);
  pthread_mutex_lock(&lock);
  destroys++;
  pthread_mutex_unlock(&lock);
}

static void *nothing(void *unused) {
  (void)unused;
  pause();
  return NULL;
}

int mooncake_store_setup(void *store, const char *host, const char *metadata, uint64_t segment, uint64_t buffer, const char *protocol,
                         const char *device, const char *master) {
  struct client *c = store;
  if (c == NULL || host == NULL || metadata == NULL || protocol == NULL || device == NULL || master == NULL || segment != 0 || buffer != 0) {
    return -600;
  }
  c->stop = option(metadata, "stop");
  c->gone = option(metadata, "gone");
  c->closed = option(metadata, "closed");
  c->strict = number(metadata, "strict") != 0;
  c->register_code = number(metadata, "register");
  while (exists(c->stop)) {
    doze();
  }
  pthread_t thread; // a library has some
  pthread_create(&thread, NULL, nothing, NULL);
  pthread_setname_np(thread, "double");
  pthread_detach(thread);
  pthread_mutex_lock(&lock);
  struct cluster *found = clusters;
  while (found != NULL && strcmp(found->master, master) != 0) {
    found = found->next;
  }
  if (found == NULL) {
    found = calloc(1, sizeof *found);
    found->master = strdup(master);
    found->capacity = number(metadata, "capacity");
    found->lease_ms = number(metadata, "lease_ms");
    found->next = clusters;
    clusters = found;
  }
  c->cluster = found;
  pthread_mutex_unlock(&lock);
  return number(metadata, "setup");
}

#ifndef WITHOUT_HEALTH_CHECK
int mooncake_store_health_check(void *store) {
  struct client *c = store;
  return c->cluster == NULL || exists(c->closed) ? 1 : exists(c->gone) ? 2 : 0;
}
#endif

#ifndef WITHOUT_GET_HOSTNAME
int mooncake_store_get_hostname(void *store, char *name, size_t size) {
  (void)store;
  return snprintf(name, size, "127.0.0.1:12345") < (int)size ? 0 : -1;
}
#endif

int mooncake_store_register_buffer(void *store, void *at, size_t size) {
  struct client *c = store;
  if (c->register_code != 0) {
    return c->register_code;
  }
  for (struct region *r = c->regions; r != NULL; r = r->next) {
    if (r->at == at) {
      return -600;
    }
  }
  struct region *r = calloc(1, sizeof *r);
  r->at = at;
  r->size = size;
  r->next = c->regions;
  c->regions = r;
  pthread_mutex_lock(&lock);
  registered_bytes += size;
  pthread_mutex_unlock(&lock);
  return 0;
}

static bool covered(struct client *c, const void *at, size_t size) {
  const unsigned char *from = at;
  for (struct region *r = c->regions; r != NULL; r = r->next) {
    if (from >= r->at && from + size <= r->at + r->size) {
      return true;
    }
  }
  return !c->strict;
}

// begin shows what keys ask for. It returns what the call is to fail with, and has
// the lock when that is 0.
static int begin(struct client *c, const char **keys, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (keys[i] == NULL || strstr(keys[i], "@call-1") != NULL) {
      return -1;
    }
  }
  for (size_t i = 0; i < n; i++) {
    while (strstr(keys[i], "@hang") != NULL && exists(c->stop)) {
      doze();
    }
  }
  pthread_mutex_lock(&lock);
  calls++;
  return 0;
}

// asked returns the code that is a key's answer whatever there is.
static int asked(struct client *c, const char *key) {
  const char *code = strstr(key, "@code-");
  return exists(c->gone) ? -900 : code != NULL ? atoi(code + 5) : 0;
}

static bool silent(const char *key) { return strstr(key, "@silent") != NULL; }

static struct object **find(struct cluster *cluster, const char *key) {
  struct object **at = &cluster->objects;
  while (*at != NULL && strcmp((*at)->key, key) != 0) {
    at = &(*at)->next;
  }
  return at;
}

static void lease(struct client *c, struct object *o) {
  if (c->cluster->lease_ms > 0) {
    o->leased_until_ms = now_ms() + c->cluster->lease_ms;
  }
}

int mooncake_store_batch_is_exist(void *store, const char **keys, size_t n, int *answers) {
  struct client *c = store;
  int code = begin(c, keys, n);
  if (code != 0) {
    return code;
  }
  for (size_t i = 0; i < n; i++) {
    struct object *o = *find(c->cluster, keys[i]);
    if (silent(keys[i])) {
      continue;
    }
    answers[i] = asked(c, keys[i]);
    if (answers[i] == 0 && o != NULL) {
      answers[i] = 1;
      lease(c, o);
    }
  }
  pthread_mutex_unlock(&lock);
  return 0;
}

static char *describe(const struct how *how) {
  char *text = NULL;
#ifdef SOFT_PIN_ACTION
  int soft = how->soft_pin_action, ttl = how->has_soft_pin_ttl || how->soft_pin_ttl_ms;
#else
  int soft = how->with_soft_pin, ttl = 0;
#endif
  if (asprintf(&text, "replicas=%zu soft=%d hard=%d ttl=%d segments=", how->replica_num, soft, how->with_hard_pin, ttl) < 0) {
    abort();
  }
  for (size_t i = 0; i < how->preferred_segments_count; i++) {
    char *longer;
    if (asprintf(&longer, "%s%s,", text, how->preferred_segments[i]) < 0) {
      abort();
    }
    free(text);
    text = longer;
  }
  return text;
}

static int put(struct client *c, const char *key, const void *from, size_t size, const struct how *how) {
  struct object **at = find(c->cluster, key);
  int code = asked(c, key);
  if (code != 0 || *at != NULL) {
    return code; // what was there stays, and is no failure
  }
  if (!covered(c, from, size)) {
    return -600;
  }
  if (c->cluster->capacity > 0 && c->cluster->used + size > c->cluster->capacity) {
    return -200;
  }
  c->cluster->used += size;
  struct object *o = calloc(1, sizeof *o);
  o->key = strdup(key);
  o->how = describe(how);
  o->size = size;
  o->bytes = malloc(size);
  memcpy(o->bytes, from, size);
  *at = o;
  return 0;
}

int mooncake_store_batch_put_from(void *store, const char **keys, void **from, const size_t *sizes, size_t n, const void *config, int *answers) {
  static const struct how one = {.replica_num = 1};
  const struct how *how = config != NULL ? config : &one;
  struct client *c = store;
  int code = begin(c, keys, n);
  if (code != 0) {
    return code;
  }
#ifdef SOFT_PIN_ACTION
  code = how->soft_pin_action < 0 || how->soft_pin_action > 2 ? -1 : 0;
#endif
#ifdef NO_PINS
  code = n == 0 ? -1 : 0;
#endif
  for (size_t i = 0; code == 0 && i < n; i++) {
    size_t last = i; // a key that is there twice has the last one's bytes
    for (size_t k = i + 1; k < n; k++) {
      last = strcmp(keys[k], keys[i]) == 0 ? k : last;
    }
    if (!silent(keys[i])) {
      answers[i] = put(c, keys[i], from[last], sizes[last], how);
    }
  }
  pthread_mutex_unlock(&lock);
  return code;
}

static void *go_on(void *arg) {
  struct writer *w = arg;
  for (unsigned char k = 0; !w->stop; k++) {
    memset(w->at, k, w->size);
    doze();
  }
  return NULL;
}

static int64_t text_of(struct client *c, const char *key, char *to, size_t size) {
  int n;
  if (strcmp(key, "double@stats") == 0) {
    n = snprintf(to, size, "creates=%ld destroys=%ld signal_threads=%ld registered_bytes=%ld calls=%ld", creates, destroys, signal_threads,
                 registered_bytes, calls);
  } else {
    struct object *o = *find(c->cluster, key + strlen("double@how@"));
    n = o != NULL ? snprintf(to, size, "%s", o->how) : -704;
  }
  return n;
}

static int64_t get(struct client *c, const char *key, unsigned char *to, size_t size) {
  struct object *o = *find(c->cluster, key);
  int code = asked(c, key);
  if (code != 0) {
    return code;
  }
  if (strcmp(key, "double@stats") == 0 || strncmp(key, "double@how@", 11) == 0) {
    return text_of(c, key, (char *)to, size);
  }
  if (strstr(key, "@longer") != NULL) {
    return size + 1;
  }
  if (strstr(key, "@goeson") != NULL) {
    struct writer *w = calloc(1, sizeof *w);
    w->at = to;
    w->size = size;
    w->next = c->writers;
    c->writers = w;
    pthread_create(&w->thread, NULL, go_on, w);
    return -800;
  }
  if (o == NULL) {
    return -704;
  }
  if (o->size > size || !covered(c, to, size)) {
    return -600;
  }
  lease(c, o);
  if (strstr(key, "@torn") != NULL) {
    memcpy(to, o->bytes, o->size / 2);
    return -707;
  }
  memcpy(to, o->bytes, o->size);
  return o->size;
}

int mooncake_store_batch_get_into(void *store, const char **keys, void **to, const size_t *sizes, size_t n, int64_t *answers) {
  struct client *c = store;
  int code = begin(c, keys, n);
  if (code != 0) {
    return code;
  }
  for (size_t i = 0; i < n; i++) {
    for (size_t k = i + 1; k < n; k++) { // of a key that is there twice, one range is filled
      if (strcmp(keys[k], keys[i]) == 0) {
        to[k] = to[i];
      }
    }
    if (!silent(keys[i])) {
      answers[i] = get(c, keys[i], to[i], sizes[i]);
    }
  }
  pthread_mutex_unlock(&lock);
  return 0;
}

static int drop(struct client *c, struct object **at, int force) {
  struct object *o = *at;
  if (o == NULL) {
    return -704;
  }
  if (!force && o->leased_until_ms > now_ms()) {
    return -706;
  }
  *at = o->next;
  c->cluster->used -= o->size;
  free(o->key);
  free(o->how);
  free(o->bytes);
  free(o);
  return 0;
}

#ifndef WITHOUT_REMOVE
int mooncake_store_remove(void *store, const char *key, int force) {
  struct client *c = store;
  int code = begin(c, &key, 1);
  if (code != 0) {
    return code;
  }
  code = asked(c, key);
  if (code == 0) {
    code = drop(c, find(c->cluster, key), force);
  }
  pthread_mutex_unlock(&lock);
  return code;
}
#endif

int64_t mooncake_store_remove_by_regex(void *store, const char *pattern, int force) {
  struct client *c = store;
  regex_t regex;
  if (exists(c->gone)) {
    return -900;
  }
  if (regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB) != 0) {
    return -600;
  }
  int code = begin(c, &pattern, 1);
  if (code != 0) {
    regfree(&regex);
    return code;
  }
  int64_t n = 0;
  for (struct object **at = &c->cluster->objects; *at != NULL;) {
    if (regexec(&regex, (*at)->key, 0, NULL, 0) != 0 || drop(c, at, force) != 0) {
      at = &(*at)->next;
    } else {
      n++;
    }
  }
  pthread_mutex_unlock(&lock);
  regfree(&regex);
  return n;
}
