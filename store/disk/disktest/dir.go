// Package disktest is a disk tier's directory in memory, with faults: errors,
// short and torn calls, a full disk, and calls that hang.
package disktest

import (
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// Op is a kind of call.
type Op uint8

// The kinds.
const (
	Open Op = iota + 1
	Read
	Write
	Allocate
	Limit
	Sync
	ReadFile
	WriteFile
)

// Call is a call that is about to be made.
type Call struct {
	Op     Op
	Offset int64
	Bytes  int
}

// Fault is what is to become of a call. The zero value lets it be.
type Fault struct {
	// Hang is how long it takes.
	Hang time.Duration
	// Err is what it returns, after it has moved Done bytes.
	Err  error
	Done int
	// Short: it moves only Done bytes and returns no error of its own.
	Short bool
	// Torn is given the directory as a kill would leave it when Done bytes of this
	// write have been written. The write itself goes on.
	Torn func(image *Dir)
}

// Dir is a directory. The zero value is an empty one on a disk without bounds.
type Dir struct {
	// Room, if not 0, is how many bytes the data file may have.
	Room int64
	// Fault, if not nil, is asked before each call, by any goroutine.
	Fault func(Call) Fault

	mu    sync.Mutex
	data  []byte
	small map[string][]byte
	open  bool
	calls map[Op]int
}

var _ disk.Dir = (*Dir)(nil)

// Clone returns a directory with the same content and no faults.
func (d *Dir) Clone() *Dir {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cloneLocked()
}

func (d *Dir) cloneLocked() *Dir {
	return &Dir{Room: d.Room, data: slices.Clone(d.data), small: maps.Clone(d.small)}
}

// Data lets edit look at the data file, and change it.
func (d *Dir) Data(edit func(data []byte) []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.data = edit(d.data)
}

// Remove removes a small file.
func (d *Dir) Remove(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.small, name)
}

// Calls returns how many calls of a kind there were.
func (d *Dir) Calls(op Op) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[op]
}

func (d *Dir) fault(c Call) Fault {
	d.mu.Lock()
	if d.calls == nil {
		d.calls = map[Op]int{}
	}
	d.calls[c.Op]++
	ask := d.Fault
	d.mu.Unlock()
	if ask == nil {
		return Fault{}
	}
	f := ask(c)
	if f.Hang > 0 {
		time.Sleep(f.Hang)
	}
	return f
}

// SetFault changes Fault while the directory is in use.
func (d *Dir) SetFault(fault func(Call) Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Fault = fault
}

// OpenData implements disk.Dir.
func (d *Dir) OpenData(string) (disk.File, error) {
	if f := d.fault(Call{Op: Open}); f.Err != nil {
		return nil, f.Err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.open {
		return nil, syscall.EWOULDBLOCK
	}
	d.open = true
	return &file{d}, nil
}

// ReadFile implements disk.Dir.
func (d *Dir) ReadFile(name string, limit int) ([]byte, error) {
	if f := d.fault(Call{Op: ReadFile}); f.Err != nil {
		return nil, f.Err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	data, there := d.small[name]
	if !there {
		return nil, fs.ErrNotExist
	}
	return slices.Clone(data[:min(limit, len(data))]), nil
}

// WriteFile implements disk.Dir.
func (d *Dir) WriteFile(name string, data []byte) error {
	if f := d.fault(Call{Op: WriteFile, Bytes: len(data)}); f.Err != nil {
		return f.Err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.small == nil {
		d.small = map[string][]byte{}
	}
	d.small[name] = slices.Clone(data)
	return nil
}

// Buffer implements disk.Dir.
func (d *Dir) Buffer(bytes int) []byte { return make([]byte, bytes) }

// file is the data file.
type file struct{ d *Dir }

func (f *file) ReadAt(p []byte, at int64) (int, error) {
	fault := f.d.fault(Call{Read, at, len(p)})
	want := p
	if fault.Err != nil || fault.Short {
		want = p[:min(fault.Done, len(p))]
	}
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	n := 0
	if at < int64(len(f.d.data)) {
		n = copy(want, f.d.data[at:])
	}
	if fault.Err != nil || fault.Short {
		return n, fault.Err
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *file) WriteAt(p []byte, at int64) (int, error) {
	fault := f.d.fault(Call{Write, at, len(p)})
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if fault.Torn != nil {
		image := f.d.cloneLocked()
		image.put(p[:min(fault.Done, len(p))], at)
		fault.Torn(image)
	} else if fault.Err != nil || fault.Short {
		p = p[:min(fault.Done, len(p))]
	}
	if f.d.Room > 0 && at+int64(len(p)) > f.d.Room {
		return 0, syscall.ENOSPC
	}
	f.d.put(p, at)
	return len(p), fault.Err
}

func (d *Dir) put(p []byte, at int64) {
	d.grow(at + int64(len(p)))
	copy(d.data[at:], p)
}

func (d *Dir) grow(to int64) {
	if to > int64(len(d.data)) {
		d.data = append(d.data, make([]byte, to-int64(len(d.data)))...)
	}
}

func (f *file) Allocate(at, n int64) error {
	if fault := f.d.fault(Call{Allocate, at, int(n)}); fault.Err != nil {
		return fault.Err
	}
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	if f.d.Room > 0 && at+n > f.d.Room {
		f.d.grow(f.d.Room) // a file system takes what there is before it finds the end
		return syscall.ENOSPC
	}
	f.d.grow(at + n)
	return nil
}

// SetRoom changes Room while the directory is in use.
func (d *Dir) SetRoom(bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Room = bytes
}

func (f *file) Limit(bytes int64) error {
	if fault := f.d.fault(Call{Op: Limit}); fault.Err != nil {
		return fault.Err
	}
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.d.data = f.d.data[:min(int64(len(f.d.data)), bytes)]
	return nil
}

func (f *file) Sync() error { return f.d.fault(Call{Op: Sync}).Err }

func (f *file) Close() error {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	f.d.open = false
	return nil
}
