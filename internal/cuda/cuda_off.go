//go:build !(cgo && linux && (amd64 || arm64))

package cuda

import (
	"errors"
	"fmt"
)

// Driver is the driver; this build has none. Nothing below is reached, as Open
// fails.
type Driver struct{}

// Context, Stream, Event, Kernel, Host and Copies are what a driver would give.
type (
	Context struct{}
	Stream  struct{}
	Event   struct{}
	Kernel  struct{}
	Host    struct {
		Data []byte
		At   Address
	}
	Copies struct{}
)

// ErrNoChunks reports a driver that can't map chunks.
var ErrNoChunks = errors.New("the driver can't map memory by descriptors")

// Open says that there is no driver.
func Open(path string) (*Driver, error) {
	return nil, fmt.Errorf("%w: built without cgo, which %s needs", ErrNoDriver, path)
}

// The driver's calls.

func (*Driver) Version() string                                      { return "" }
func (*Driver) CanMapChunks() bool                                   { return false }
func (*Driver) CanBatch() bool                                       { return false }
func (*Driver) Devices() ([]Device, error)                           { return nil, ErrNoDriver }
func (*Driver) Retain(Device) (*Context, error)                      { return nil, ErrNoDriver }
func (*Context) Release() error                                      { return ErrNoDriver }
func (*Context) NewStream() (Stream, error)                          { return Stream{}, ErrNoDriver }
func (*Context) DestroyStream(Stream) error                          { return ErrNoDriver }
func (*Context) NewEvent() (Event, error)                            { return Event{}, ErrNoDriver }
func (*Context) OpenEvent(Handle) (Event, error)                     { return Event{}, ErrNoDriver }
func (*Context) DestroyEvent(Event) error                            { return ErrNoDriver }
func (*Context) Record(Event, Stream) error                          { return ErrNoDriver }
func (*Context) Done(Event) (bool, error)                            { return false, ErrNoDriver }
func (*Context) Await(Event) error                                   { return ErrNoDriver }
func (*Context) OpenMemory(Handle) (Address, error)                  { return 0, ErrNoDriver }
func (*Context) CloseMemory(Address) error                           { return ErrNoDriver }
func (*Context) Range(Address) (Address, uint64, error)              { return 0, 0, ErrNoDriver }
func (*Context) MapChunks([]int, []uint64) (Address, error)          { return 0, ErrNoDriver }
func (*Context) UnmapChunks(Address, []uint64) error                 { return ErrNoDriver }
func (*Context) Alloc(uint64) (Address, error)                       { return 0, ErrNoDriver }
func (*Context) Free(Address) error                                  { return ErrNoDriver }
func (*Context) AllocHost(int) (Host, error)                         { return Host{}, ErrNoDriver }
func (*Context) FreeHost(Host) error                                 { return ErrNoDriver }
func (*Context) Register([]byte) (Host, error)                       { return Host{}, ErrNoDriver }
func (*Context) Unregister(Host) error                               { return ErrNoDriver }
func (*Context) Copy(*Copies, Stream) error                          { return ErrNoDriver }
func (*Context) Load(_, _ string) (Kernel, error)                    { return Kernel{}, ErrNoDriver }
func (*Context) Unload(Kernel) error                                 { return ErrNoDriver }
func (*Context) Launch(Kernel, int, int, Address, int, Stream) error { return ErrNoDriver }
func (*Copies) Add(Piece)                                            {}
func (*Copies) Reset()                                               {}
