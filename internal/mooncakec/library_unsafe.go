//go:build cgo && linux && (amd64 || arm64)

package mooncakec

// #cgo LDFLAGS: -ldl -lpthread
// #include <stdlib.h>
// #include <string.h>
// #include "clib.h"
import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// Py_IsInitialized is there for C to find: the library leaves the signals to a process
// that has this symbol. It tells the truth to who calls it.
//
//export Py_IsInitialized
func Py_IsInitialized() C.int { return 0 }

// Memory and its lifetime: the library gets pointers to C memory (blocks, texts, the
// table), which is freed when it has returned from the call it was for, and to the
// memory that was registered, which is mapped and outlives the client. Nothing of
// Go's heap is passed.

// loaded is a library. It stays loaded: its threads run its code.
type loaded struct {
	table *C.mcl_table // for as long as the process lives
}

// load loads the library at path.
func load(path string) (library, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	const whyBytes = 512
	why := (*C.char)(C.malloc(whyBytes))
	defer C.free(unsafe.Pointer(why))
	table := (*C.mcl_table)(C.malloc(C.sizeof_mcl_table))
	*table = C.mcl_table{}
	if C.mcl_load(name, table, why, whyBytes) != 0 {
		C.free(unsafe.Pointer(table))
		return nil, fmt.Errorf("%w: %s", ErrLibrary, strings.ToValidUTF8(C.GoString(why), "\ufffd"))
	}
	return &loaded{table: table}, nil
}

// handle is a client of the library.
type handle struct {
	table *C.mcl_table
	store unsafe.Pointer
	form  pins // set before there are calls

	mu         sync.Mutex
	registered [][]byte
}

func (l *loaded) create() (client, error) {
	store := C.mcl_create(l.table)
	if store == nil {
		return nil, fmt.Errorf("%w: it made no client", ErrLibrary)
	}
	return &handle{table: l.table, store: store}, nil
}

func (h *handle) setup(s *settings) mooncake.Code {
	var texts []*C.char
	text := func(value string) *C.char {
		c := C.CString(value)
		texts = append(texts, c)
		return c
	}
	defer func() {
		for _, c := range texts {
			C.free(unsafe.Pointer(c))
		}
	}()
	return mooncake.Code(C.mcl_setup(h.table, h.store, text(s.localHostname), text(s.metadataServer), C.uint64_t(s.segmentBytes), C.uint64_t(s.bufferBytes),
		text(s.protocol), text(s.deviceName), text(s.master)))
}

func (h *handle) register(memory []byte) mooncake.Code {
	code := mooncake.Code(C.mcl_register(h.table, h.store, unsafe.Pointer(unsafe.SliceData(memory)), C.size_t(len(memory))))
	if code == 0 {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.registered = append(h.registered, memory)
	}
	return code
}

var errUnregistered = errors.New("BUG: a transfer with memory that is not registered")

// addressOf returns the address of registered memory, after a look at the ranges:
// the library would take any.
func (h *handle) addressOf(memory []byte, objects []mooncake.Object) (uint64, error) {
	if err := mooncake.CheckObjects(uint64(len(memory)), objects); err != nil {
		return 0, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.registered {
		if unsafe.SliceData(r) == unsafe.SliceData(memory) && len(r) == len(memory) {
			return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(memory)))), nil
		}
	}
	return 0, errUnregistered
}

// inC gives a planned block its memory; the caller frees it.
func inC(p *block) unsafe.Pointer {
	at := C.malloc(C.size_t(p.total)) // it does not return where there is no memory
	p.b, p.base = unsafe.Slice((*byte)(at), p.total), uint64(uintptr(at))
	return at
}

func (h *handle) exist(keys []string) ([]mooncake.Answer, error) {
	p := plan(len(keys), textOf(keys), false, nil)
	at := inC(p)
	defer C.free(at)
	p.fillKeys(func(i int) string { return keys[i] })
	code := C.mcl_exist(h.table, h.store, unsafe.Add(at, p.keys), C.size_t(p.n), unsafe.Add(at, p.answers))
	return p.conclude("exist", int(code), answer32, func(int) uint64 { return 1 })
}

func (h *handle) remove(keys []string, force bool) ([]mooncake.Answer, error) {
	p := plan(len(keys), textOf(keys), false, nil)
	at := inC(p)
	defer C.free(at)
	p.fillKeys(func(i int) string { return keys[i] })
	C.mcl_remove(h.table, h.store, unsafe.Add(at, p.keys), C.size_t(p.n), truth(force), unsafe.Add(at, p.answers))
	return p.conclude("remove", 0, answer32, func(int) uint64 { return 0 })
}

func (h *handle) put(memory []byte, how *mooncake.Replication, objects []mooncake.Object) ([]mooncake.Answer, error) {
	return h.putAs(h.form, memory, how, objects, nil)
}

// putAs puts objects, how they are kept said in that form, and changed after that.
func (h *handle) putAs(form pins, memory []byte, how *mooncake.Replication, objects []mooncake.Object, change func(p *block)) ([]mooncake.Answer, error) {
	address, err := h.addressOf(memory, objects)
	if err != nil {
		return nil, err
	}
	p := plan(len(objects), textOfObjects(objects), true, how)
	at := inC(p)
	defer C.free(at)
	p.fillKeys(func(i int) string { return objects[i].Key })
	p.fillObjects(address, objects)
	p.fillHow(form, how)
	if change != nil {
		change(p)
	}
	code := C.mcl_put(h.table, h.store, unsafe.Add(at, p.keys), unsafe.Add(at, p.buffers), unsafe.Add(at, p.sizes), C.size_t(p.n),
		unsafe.Add(at, p.how), unsafe.Add(at, p.answers))
	return p.conclude("put", int(code), answer32, func(int) uint64 { return 0 })
}

func (h *handle) get(memory []byte, objects []mooncake.Object) ([]mooncake.Answer, error) {
	address, err := h.addressOf(memory, objects)
	if err != nil {
		return nil, err
	}
	p := plan(len(objects), textOfObjects(objects), true, nil)
	at := inC(p)
	defer C.free(at)
	p.fillKeys(func(i int) string { return objects[i].Key })
	p.fillObjects(address, objects)
	code := C.mcl_get(h.table, h.store, unsafe.Add(at, p.keys), unsafe.Add(at, p.buffers), unsafe.Add(at, p.sizes), C.size_t(p.n), unsafe.Add(at, p.answers))
	return p.conclude("get", int(code), answer64, func(i int) uint64 { return objects[i].Range.Bytes })
}

func (h *handle) removeRegex(expression string) (int, error) {
	text := C.CString(expression)
	defer C.free(unsafe.Pointer(text))
	n := C.mcl_remove_regex(h.table, h.store, text, truth(false))
	if n < 0 {
		return 0, &mooncake.Error{Op: "remove", Code: mooncake.Answer(n).Code(), Text: expression}
	}
	return int(n), nil
}

// learnPins puts nothing, in the form of pinsAction: with an action that there is,
// and with one that there is not. A library of that form refuses the second; an
// older one does not read so far.
func (h *handle) learnPins() string {
	nothing := func(action uint32) error {
		how := mooncake.Replication{}
		_, err := h.putAs(pinsAction, h.registeredFirst(), &how, nil, func(p *block) { binary.NativeEndian.PutUint32(p.b[p.how+howAction:], action) })
		return err
	}
	const none = 99
	switch right, wrong := nothing(0), nothing(none); {
	case right != nil:
		h.form = pinsUnknown
	case wrong != nil:
		h.form = pinsAction
	default:
		h.form = pinsFlags
	}
	return h.form.String()
}

func (h *handle) registeredFirst() []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.registered[0]
}

func (h *handle) closed() bool {
	const notSetUp = 1
	return C.mcl_health(h.table, h.store) == notSetUp
}

func (h *handle) hostname() string {
	const nameBytes = 512
	name := C.malloc(nameBytes)
	defer C.free(name)
	if C.mcl_hostname(h.table, h.store, (*C.char)(name), nameBytes-1) != 0 {
		return ""
	}
	return strings.ToValidUTF8(C.GoStringN((*C.char)(name), C.int(C.strnlen((*C.char)(name), nameBytes-1))), "\ufffd")
}

func (h *handle) destroy() { C.mcl_destroy(h.table, h.store) }

func truth(b bool) C.int {
	if b {
		return 1
	}
	return 0
}
