//go:build cgo && linux && (amd64 || arm64)

package cuda

// #include "clib.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

// Context is a device's primary context. It is safe for concurrent use, but for
// Release, which comes last.
type Context struct {
	driver *Driver
	t      *C.cud_table
	number C.int
	c      unsafe.Pointer
}

// Stream is a queue of work for the device.
type Stream struct{ s unsafe.Pointer }

// Event is a point in a stream, of this process or of another.
type Event struct{ e unsafe.Pointer }

// Release gives the context up. The device's memory for it is freed when nobody
// else in the process holds it.
func (c *Context) Release() error {
	return c.driver.check("cuDevicePrimaryCtxRelease", C.cud_release(c.t, c.number))
}

// NewStream makes a stream of the lowest priority.
func (c *Context) NewStream() (s Stream, err error) {
	err = c.driver.check("cuStreamCreateWithPriority", C.cud_stream(c.t, c.c, &s.s))
	return s, err
}

// DestroyStream gives a stream up.
//
// REQUIRES: nothing of it is under way.
func (c *Context) DestroyStream(s Stream) error {
	return c.driver.check("cuStreamDestroy", C.cud_stream_destroy(c.t, c.c, s.s))
}

// NewEvent makes an event. Who waits for it sleeps.
func (c *Context) NewEvent() (e Event, err error) {
	err = c.driver.check("cuEventCreate", C.cud_event(c.t, c.c, &e.e))
	return e, err
}

// OpenEvent opens an event of another process.
func (c *Context) OpenEvent(handle Handle) (e Event, err error) {
	err = c.driver.check("cuIpcOpenEventHandle", C.cud_open_event(c.t, c.c, unsafe.Pointer(&handle), &e.e))
	return e, err
}

// DestroyEvent gives an event up, also one of another process, which has its own.
func (c *Context) DestroyEvent(e Event) error {
	return c.driver.check("cuEventDestroy", C.cud_event_destroy(c.t, c.c, e.e))
}

// Record sets an event behind what the stream has.
func (c *Context) Record(e Event, s Stream) error {
	return c.driver.check("cuEventRecord", C.cud_event_record(c.t, c.c, e.e, s.s))
}

// Done reports whether everything in front of an event's last record is done.
func (c *Context) Done(e Event) (bool, error) {
	err := c.driver.check("cuEventQuery", C.cud_event_query(c.t, c.c, e.e))
	if NotReady.In(err) {
		return false, nil
	}
	return err == nil, err
}

// Await sleeps until Done. It occupies a thread.
func (c *Context) Await(e Event) error {
	return c.driver.check("cuEventSynchronize", C.cud_event_synchronize(c.t, c.c, e.e))
}

// OpenMemory maps an allocation of another process.
//
// REQUIRES: it is not mapped already: the driver has one mapping of an allocation.
func (c *Context) OpenMemory(handle Handle) (Address, error) {
	var at C.uint64_t
	err := c.driver.check("cuIpcOpenMemHandle", C.cud_open_memory(c.t, c.c, unsafe.Pointer(&handle), &at))
	return Address(at), err
}

// CloseMemory unmaps what OpenMemory has mapped.
//
// REQUIRES: nothing is under way there.
func (c *Context) CloseMemory(at Address) error {
	return c.driver.check("cuIpcCloseMemHandle", C.cud_close_memory(c.t, c.c, C.uint64_t(at)))
}

// Range returns the allocation or mapping that an address lies in, as the driver
// knows it.
func (c *Context) Range(at Address) (base Address, bytes uint64, err error) {
	var b C.uint64_t
	var n C.size_t
	err = c.driver.check("cuMemGetAddressRange", C.cud_range(c.t, c.c, C.uint64_t(at), &b, &n))
	return Address(b), uint64(n), err
}

// ErrNoChunks reports a driver that can't map chunks.
var ErrNoChunks = errors.New("the driver can't map memory by descriptors")

// MapChunks maps chunks of memory, made by another process, one after the other.
// The descriptors stay the caller's.
//
// REQUIRES: one descriptor a size, and at least one.
func (c *Context) MapChunks(fds []int, bytes []uint64) (Address, error) {
	numbers := make([]C.int, len(fds))
	for i, fd := range fds {
		numbers[i] = C.int(fd)
	}
	return c.mapChunks(&numbers[0], nil, bytes)
}

// MapFabric maps chunks by their fabric handles, which are one behind the other.
//
// REQUIRES: one handle a size, and at least one.
func (c *Context) MapFabric(handles []byte, bytes []uint64) (Address, error) {
	return c.mapChunks(nil, (*C.char)(unsafe.Pointer(&handles[0])), bytes)
}

func (c *Context) mapChunks(fds *C.int, fabric *C.char, bytes []uint64) (Address, error) {
	if !c.driver.CanMapChunks() {
		return 0, ErrNoChunks
	}
	var at C.uint64_t
	n := len(bytes)
	err := c.driver.check("cuMemMap", C.cud_map_chunks(c.t, c.c, c.number, fds, fabric, (*C.uint64_t)(&bytes[0]), C.size_t(n), &at))
	if err != nil {
		return 0, fmt.Errorf("map %d chunks: %w", n, err)
	}
	return Address(at), nil
}

// UnmapChunks unmaps what MapChunks has mapped, of the same sizes.
//
// REQUIRES: nothing is under way there.
func (c *Context) UnmapChunks(at Address, bytes []uint64) error {
	return c.driver.check("cuMemUnmap", C.cud_unmap_chunks(c.t, c.c, C.uint64_t(at), (*C.uint64_t)(&bytes[0]), C.size_t(len(bytes))))
}
