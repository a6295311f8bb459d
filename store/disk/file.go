package disk

import "io"

// File is the tier's data file. Its calls may fail, be short, or hang: the tier
// makes each of them under a deadline, from a goroutine that it can leave behind.
type File interface {
	io.ReaderAt
	io.WriterAt
	// Allocate reserves a range of the file, so that writing to it later does not
	// find the disk full. An error that is syscall.ENOSPC says that it is.
	Allocate(offset, n int64) error
	// Limit gives back what the file has beyond a length.
	Limit(bytes int64) error
	// Sync returns when what was written survives a loss of power.
	Sync() error
	Close() error
}

// Dir is the directory that a tier keeps its files in.
type Dir interface {
	// OpenData opens the data file, which it makes if it is not there, for this
	// process alone. Reads and writes go past the page cache where they can, so
	// that the memory of cached chunks is not spent twice; offsets and lengths are
	// multiples of PageBytes, and the bytes are in a Buffer.
	OpenData(name string) (File, error)
	// ReadFile returns a small file; an error that is fs.ErrNotExist says that
	// there is none.
	ReadFile(name string, limit int) ([]byte, error)
	// WriteFile replaces a small file: after a crash at any instant it has its old
	// content or the new. It returns when the new survives a loss of power.
	WriteFile(name string, data []byte) error
	// Buffer returns memory for I/O.
	Buffer(bytes int) []byte
}

// Names of the files.
const (
	dataName     = "chunks.mcs"
	removalsName = "removals.mcs"
)
