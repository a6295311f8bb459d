//go:build cgo && linux && (amd64 || arm64)

package cuda

// #include <stdlib.h>
// #include "clib.h"
import "C"

import "unsafe"

// Host is host memory that the device reaches.
type Host struct {
	// Data is the memory, At where the device sees it.
	Data []byte
	At   Address
}

// Alloc allocates memory of the device.
func (c *Context) Alloc(bytes uint64) (Address, error) {
	var at C.uint64_t
	err := c.driver.check("cuMemAlloc", C.cud_alloc(c.t, c.c, C.size_t(bytes), &at))
	return Address(at), err
}

// Free frees what Alloc allocated.
func (c *Context) Free(at Address) error {
	return c.driver.check("cuMemFree", C.cud_free(c.t, c.c, C.uint64_t(at)))
}

// AllocHost allocates host memory that the device reaches.
func (c *Context) AllocHost(bytes int) (Host, error) {
	var memory unsafe.Pointer
	var at C.uint64_t
	if err := c.driver.check("cuMemHostAlloc", C.cud_host_alloc(c.t, c.c, C.size_t(bytes), &memory, &at)); err != nil {
		return Host{}, err
	}
	return Host{Data: unsafe.Slice((*byte)(memory), bytes), At: Address(at)}, nil
}

// FreeHost frees what AllocHost allocated.
func (c *Context) FreeHost(h Host) error {
	return c.driver.check("cuMemFreeHost", C.cud_host_free(c.t, c.c, unsafe.Pointer(unsafe.SliceData(h.Data))))
}

// Register makes memory that is mapped here reachable for the device: its pages
// are there from now on and stay where they are.
//
// REQUIRES: the memory is not Go's, and stays mapped until Unregister.
func (c *Context) Register(memory []byte) (Host, error) {
	var at C.uint64_t
	err := c.driver.check("cuMemHostRegister",
		C.cud_host_register(c.t, c.c, unsafe.Pointer(unsafe.SliceData(memory)), C.size_t(len(memory)), &at))
	return Host{Data: memory, At: Address(at)}, err
}

// Unregister ends what Register began.
//
// REQUIRES: nothing is under way there.
func (c *Context) Unregister(h Host) error {
	return c.driver.check("cuMemHostUnregister", C.cud_host_unregister(c.t, c.c, unsafe.Pointer(unsafe.SliceData(h.Data))))
}

// Copies are the arguments of a call to Copy or CopyBatch, which a caller keeps to
// use them again.
type Copies struct {
	to, from []C.uint64_t
	bytes    []C.size_t
}

// Add adds a copy.
func (p *Copies) Add(piece Piece) {
	p.to, p.from, p.bytes = append(p.to, C.uint64_t(piece.To)), append(p.from, C.uint64_t(piece.From)), append(p.bytes, C.size_t(piece.Bytes))
}

// Reset forgets all.
func (p *Copies) Reset() { p.to, p.from, p.bytes = p.to[:0], p.from[:0], p.bytes[:0] }

// Copy enqueues copies, in one call of the driver where it has that, else one by
// one. An error may come after some of them: what is enqueued runs.
func (c *Context) Copy(p *Copies, s Stream) error {
	n := C.size_t(len(p.to))
	if n == 0 {
		return nil
	}
	if c.driver.CanBatch() {
		return c.driver.check("cuMemcpyBatchAsync", C.cud_copy_batch(c.t, c.c, &p.to[0], &p.from[0], &p.bytes[0], n, s.s))
	}
	return c.driver.check("cuMemcpyAsync", C.cud_copy(c.t, c.c, &p.to[0], &p.from[0], &p.bytes[0], n, s.s))
}

// Kernel is a function of a loaded module.
type Kernel struct{ module, function unsafe.Pointer }

// Load makes the driver compile a module's text, and returns its function of that
// name.
func (c *Context) Load(ptx, name string) (k Kernel, err error) {
	text, function := C.CString(ptx), C.CString(name)
	defer C.free(unsafe.Pointer(text))
	defer C.free(unsafe.Pointer(function))
	err = c.driver.check("cuModuleLoadDataEx", C.cud_module(c.t, c.c, text, function, &k.module, &k.function))
	return k, err
}

// Unload gives a kernel's module up.
//
// REQUIRES: the kernel does not run.
func (c *Context) Unload(k Kernel) error {
	return c.driver.check("cuModuleUnload", C.cud_module_unload(c.t, c.c, k.module))
}

// Launch enqueues a kernel of so many blocks of so many threads, with a list and
// its length for arguments.
func (c *Context) Launch(k Kernel, blocks, threads int, list Address, n int, s Stream) error {
	return c.driver.check("cuLaunchKernel",
		C.cud_launch(c.t, c.c, k.function, C.uint(blocks), C.uint(threads), C.uint64_t(list), C.uint(n), s.s))
}
