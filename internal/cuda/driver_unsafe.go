//go:build cgo && linux && (amd64 || arm64)

package cuda

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "clib.h"
import "C"

import (
	"fmt"
	"strings"
	"unsafe"
)

// Memory and its lifetime: the driver gets numbers, pointers to C memory or to
// flat Go memory without pointers for the time of one call, and memory that was
// registered or allocated with it, which its owner keeps until it has given it
// back.

// Driver is the loaded library. It stays loaded for as long as the process lives:
// its threads run its code. It is safe for concurrent use.
type Driver struct {
	table *C.cud_table
	// version is CUDA's that the driver brings, 12080 for 12.8.
	version int
}

// Open loads the library and initialises it. A device is not touched.
func Open(path string) (*Driver, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	table := (*C.cud_table)(C.calloc(1, C.sizeof_cud_table))
	var why [256]C.char
	if C.cud_load(name, table, &why[0], C.size_t(len(why))) != 0 {
		C.free(unsafe.Pointer(table))
		return nil, fmt.Errorf("%w: %s", ErrNoDriver, strings.ToValidUTF8(C.GoString(&why[0]), "\ufffd"))
	}
	d := &Driver{table: table}
	var version C.int
	if err := d.check("cuInit", C.cud_init(table, &version)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoDriver, err)
	}
	d.version = int(version)
	return d, nil
}

// Version returns the driver's as people write it, 12.8.
func (d *Driver) Version() string { return fmt.Sprintf("%d.%d", d.version/1000, d.version%1000/10) }

// CanMapChunks reports whether MapChunks is there.
func (d *Driver) CanMapChunks() bool { return C.cud_can_map_chunks(d.table) != 0 }

// CanBatch reports whether CopyBatch is one call of the driver.
func (d *Driver) CanBatch() bool { return C.cud_can_batch(d.table) != 0 }

// check turns an answer into an error.
func (d *Driver) check(call string, code C.int) error {
	if code == 0 {
		return nil
	}
	e := &Error{Call: call, Code: Code(code), Name: "an unknown error", Text: "the driver does not say what it is"}
	if text := C.cud_error_name(d.table, code); text != nil {
		e.Name = C.GoString(text)
	}
	if text := C.cud_error_string(d.table, code); text != nil {
		e.Text = C.GoString(text)
	}
	return e
}

const (
	maxDevices     = 256
	attrProcessors = 16 // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
)

// Devices lists what the driver shows to this process.
func (d *Driver) Devices() ([]Device, error) {
	var n C.int
	if err := d.check("cuDeviceGetCount", C.cud_device_count(d.table, &n)); err != nil {
		return nil, err
	}
	devices := make([]Device, 0, min(int(n), maxDevices))
	for i := range cap(devices) {
		var number, processors C.int
		var uuid [16]C.char
		var name [128]C.char
		if err := d.check("cuDeviceGet", C.cud_device_at(d.table, C.int(i), &number, &uuid[0], &name[0], C.size_t(len(name)))); err != nil {
			return nil, fmt.Errorf("device %d: %w", i, err)
		}
		if err := d.check("cuDeviceGetAttribute", C.cud_attribute(d.table, attrProcessors, number, &processors)); err != nil {
			return nil, fmt.Errorf("device %d: %w", i, err)
		}
		device := Device{Name: C.GoString(&name[0]), Processors: int(processors), number: int(number)}
		for k := range device.UUID {
			device.UUID[k] = byte(uuid[k])
		}
		devices = append(devices, device)
	}
	return devices, nil
}

// Retain makes the device's primary context if it is not there, and holds it.
func (d *Driver) Retain(device Device) (*Context, error) {
	var context unsafe.Pointer
	if err := d.check("cuDevicePrimaryCtxRetain", C.cud_retain(d.table, C.int(device.number), &context)); err != nil {
		return nil, err
	}
	return &Context{driver: d, t: d.table, number: C.int(device.number), c: context}, nil
}
