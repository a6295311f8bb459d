//go:build cgo && linux && (amd64 || arm64) && !nonvml

package gpu

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "resolve.h"
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/mooncake-sidecar/sidecar/internal/topology"
)

// resolve loads the library and fills the slots of all its functions. The library
// stays loaded for as long as the process lives, since the slots point into it.
func resolve(path string) error {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name)) // C's copy, which it does not keep
	var why [256]C.char
	if C.gpu_resolve(name, &why[0], C.size_t(len(why))) != 0 {
		return fmt.Errorf("%w: %s", topology.ErrNoDriver, C.GoString(&why[0]))
	}
	return nil
}
