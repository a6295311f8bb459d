package cuda

import (
	"errors"
	"fmt"
)

// ErrNoDriver reports that there is no driver to ask: no library, a build without
// cgo, or a driver that finds no device.
var ErrNoDriver = errors.New("no CUDA driver")

// ErrNoDevice reports a device that the driver does not have, or does not show to
// this process.
var ErrNoDevice = errors.New("no such CUDA device")

// Code is a number of the driver's (CUresult).
type Code int

// Codes that callers tell apart.
const (
	InvalidValue      Code = 1
	OutOfMemory       Code = 2
	NoDevice          Code = 100
	AlreadyMapped     Code = 208
	ECCUncorrectable  Code = 214
	Contained         Code = 226
	InvalidHandle     Code = 400
	NotReady          Code = 600
	IllegalAddress    Code = 700
	LaunchTimeout     Code = 702
	ContextDestroyed  Code = 709
	Assert            Code = 710
	AlreadyRegistered Code = 712
	HardwareStack     Code = 714
	IllegalInstr      Code = 715
	MisalignedAddress Code = 716
	InvalidAddrSpace  Code = 717
	InvalidPC         Code = 718
	LaunchFailed      Code = 719
	TensorMemoryLeak  Code = 721
	MPSTerminated     Code = 810
	ExternalDevice    Code = 911
)

// Error is a call that the driver refused or that found something wrong.
type Error struct {
	// Call is the driver's function.
	Call string
	Code Code
	// Name is the code's, CUDA_ERROR_...; Text is the driver's description.
	Name, Text string
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s (%d): %s", e.Call, e.Name, e.Code, e.Text)
}

// In reports whether err is, or wraps, an Error of this code.
func (c Code) In(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == c
}

// Lost reports whether err is one after which the context, and with it all that
// this process does with the device, is of no use any more: what was enqueued is
// ended.
func Lost(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code {
	case ECCUncorrectable, Contained, IllegalAddress, LaunchTimeout, ContextDestroyed, Assert, HardwareStack, IllegalInstr, MisalignedAddress,
		InvalidAddrSpace, InvalidPC, LaunchFailed, TensorMemoryLeak, MPSTerminated, ExternalDevice:
		return true
	}
	return false
}
