//go:build !(cgo && linux && (amd64 || arm64))

package cuda

import (
	"errors"
	"fmt"
)

// Driver is the driver; this build has none. Nothing below is reached, as Open
// fails.
type Driver struct{}

type (
	// Context is what Retain would return.
	Context struct{}
	// Stream is what NewStream would return.
	Stream struct{}
	// Event is what NewEvent would return.
	Event struct{}
	// Kernel is what Load would return.
	Kernel struct{}
	// Host is what Register would return.
	Host struct {
		Data []byte
		At   Address
	}
	// Copies are a call's arguments.
	Copies struct{}
)

// ErrNoChunks reports a driver that can't map chunks.
var ErrNoChunks = errors.New("the driver can't map memory by descriptors")

// Open says that there is no driver.
func Open(path string) (*Driver, error) {
	return nil, fmt.Errorf("%w: built without cgo, which %s needs", ErrNoDriver, path)
}

// Version is never reached.
func (*Driver) Version() string { return "" }

// CanMapChunks is never reached.
func (*Driver) CanMapChunks() bool { return false }

// CanBatch is never reached.
func (*Driver) CanBatch() bool { return false }

// Devices is never reached.
func (*Driver) Devices() ([]Device, error) { return nil, ErrNoDriver }

// Retain is never reached.
func (*Driver) Retain(Device) (*Context, error) { return nil, ErrNoDriver }

// Release is never reached.
func (*Context) Release() error { return ErrNoDriver }

// NewStream is never reached.
func (*Context) NewStream() (Stream, error) { return Stream{}, ErrNoDriver }

// DestroyStream is never reached.
func (*Context) DestroyStream(Stream) error { return ErrNoDriver }

// NewEvent is never reached.
func (*Context) NewEvent() (Event, error) { return Event{}, ErrNoDriver }

// OpenEvent is never reached.
func (*Context) OpenEvent(Handle) (Event, error) { return Event{}, ErrNoDriver }

// DestroyEvent is never reached.
func (*Context) DestroyEvent(Event) error { return ErrNoDriver }

// Record is never reached.
func (*Context) Record(Event, Stream) error { return ErrNoDriver }

// Done is never reached.
func (*Context) Done(Event) (bool, error) { return false, ErrNoDriver }

// Await is never reached.
func (*Context) Await(Event) error { return ErrNoDriver }

// OpenMemory is never reached.
func (*Context) OpenMemory(Handle) (Address, error) { return 0, ErrNoDriver }

// CloseMemory is never reached.
func (*Context) CloseMemory(Address) error { return ErrNoDriver }

// Range is never reached.
func (*Context) Range(Address) (Address, uint64, error) { return 0, 0, ErrNoDriver }

// MapChunks is never reached.
func (*Context) MapChunks([]int, []uint64) (Address, error) { return 0, ErrNoDriver }

// MapFabric is never reached.
func (*Context) MapFabric([]byte, []uint64) (Address, error) { return 0, ErrNoDriver }

// UnmapChunks is never reached.
func (*Context) UnmapChunks(Address, []uint64) error { return ErrNoDriver }

// Alloc is never reached.
func (*Context) Alloc(uint64) (Address, error) { return 0, ErrNoDriver }

// Free is never reached.
func (*Context) Free(Address) error { return ErrNoDriver }

// AllocHost is never reached.
func (*Context) AllocHost(int) (Host, error) { return Host{}, ErrNoDriver }

// FreeHost is never reached.
func (*Context) FreeHost(Host) error { return ErrNoDriver }

// Register is never reached.
func (*Context) Register([]byte) (Host, error) { return Host{}, ErrNoDriver }

// Unregister is never reached.
func (*Context) Unregister(Host) error { return ErrNoDriver }

// Copy is never reached.
func (*Context) Copy(*Copies, Stream) error { return ErrNoDriver }

// Load is never reached.
func (*Context) Load(_, _ string) (Kernel, error) { return Kernel{}, ErrNoDriver }

// Unload is never reached.
func (*Context) Unload(Kernel) error { return ErrNoDriver }

// Launch is never reached.
func (*Context) Launch(Kernel, int, int, Address, int, Stream) error { return ErrNoDriver }

// Add is never reached.
func (*Copies) Add(Piece) {}

// Reset is never reached.
func (*Copies) Reset() {}
