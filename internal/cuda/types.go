package cuda

// LibraryName is the driver's library.
const LibraryName = "libcuda.so.1"

// Address is a place in memory as the device sees it.
type Address uint64

// HandleBytes is the length of a Handle.
const HandleBytes = 64

// Handle names memory or an event of another process, as that process' driver
// gave it.
type Handle [HandleBytes]byte

// UUID tells devices apart on all machines, and for all processes alike, whatever
// numbers they see them by.
type UUID [16]byte

// Device is a device as the driver shows it to this process.
type Device struct {
	UUID UUID
	Name string
	// Processors is the number of its multiprocessors.
	Processors int
	// number is the driver's.
	number int
}

// Piece is one copy.
type Piece struct {
	To, From Address
	Bytes    uint64
}
