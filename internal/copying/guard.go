package copying

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// ErrFault reports a page of mapped memory that could not be had.
var ErrFault = errors.New("memory fault")

// Guarded works on mapped memory: a fault there, which would end the process, is
// turned into an error. It is a panic in this goroutine meanwhile.
func Guarded(work func()) (fault error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			at, ok := r.(interface{ Addr() uintptr })
			if !ok {
				panic(r)
			}
			fault = fmt.Errorf("copy: %w at %#x", ErrFault, at.Addr())
		}
	}()
	work()
	return nil
}
