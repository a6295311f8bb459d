package hostdev

import (
	"errors"
	"fmt"
	"hash/crc32"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/worker"
)

// maxPieces is the most remote ranges in one call; the kernel takes 1024.
const maxPieces = 512

// scratchBytes is read back at a time to learn what a load has written.
const scratchBytes = 64 << 10

var errGone = errors.New("the engine process is gone")

// process is an engine whose private memory the kernel reads and writes for us.
// It needs the same uid and the permission to trace.
type process struct {
	pid   int
	pidfd int // tells the process from a later one of its number
}

func openProcess(pid int) (*process, error) {
	if pid <= 0 {
		return nil, fmt.Errorf("process_vm: the engine has no process id here")
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("process_vm: process %d: %w", pid, err)
	}
	return &process{pid: pid, pidfd: fd}, nil
}

func (p *process) close() { _ = unix.Close(p.pidfd) }

// alive reports whether the process has not ended.
func (p *process) alive() bool {
	polled := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(polled, 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n == 0
		}
	}
}

// probe reads the first and the last byte of a range, so that a registration
// that can't work is refused.
func (p *process) probe(address, bytes uint64) error {
	if bytes == 0 || address+bytes < address {
		return fmt.Errorf("process_vm: %d bytes at %#x", bytes, address)
	}
	var b [1]byte
	for _, at := range []uint64{address, address + bytes - 1} {
		if err := p.move(worker.Store, b[:], []unix.RemoteIovec{{Base: uintptr(at), Len: 1}}); err != nil {
			return fmt.Errorf("read process %d at %#x (same user, and ptrace_scope 0 or 1?): %w", p.pid, at, err)
		}
	}
	return nil
}

// transfer moves the pieces of one block that lie in remote regions, from the
// first segment on, as many as one call takes. It returns how many and the
// checksum so far.
func (p *process) transfer(direction worker.Direction, segments []segment, block uint32, memory []byte, sum uint32) (n int, crc uint32, err error) {
	var pieces []unix.RemoteIovec
	total := 0
	for n < len(segments) && n < maxPieces && segments[n].region.mapped == nil {
		s := &segments[n]
		pieces = append(pieces, unix.RemoteIovec{Base: uintptr(s.region.address + s.at(block)), Len: s.bytes})
		total += s.bytes
		n++
	}
	if err := p.move(direction, memory[:total], pieces); err != nil {
		return 0, 0, err
	}
	if direction == worker.Store {
		return n, crc32.Update(sum, castagnoli(), memory[:total]), nil
	}
	// The destination is the engine's memory: read it back.
	scratch := make([]byte, min(total, scratchBytes))
	for i := range n {
		s := &segments[i]
		for at := 0; at < s.bytes; {
			part := scratch[:min(len(scratch), s.bytes-at)]
			from := uintptr(s.region.address + s.at(block) + uint64(at))
			if err := p.move(worker.Store, part, []unix.RemoteIovec{{Base: from, Len: len(part)}}); err != nil {
				return 0, 0, err
			}
			sum = crc32.Update(sum, castagnoli(), part)
			at += len(part)
		}
	}
	return n, sum, nil
}

// move reads (Store) or writes (Load) remote ranges from or to memory, whole.
// It uses up pieces.
//
// REQUIRES: memory is as long as the pieces together.
func (p *process) move(direction worker.Direction, memory []byte, pieces []unix.RemoteIovec) error {
	for len(memory) > 0 {
		local := []unix.Iovec{{Base: &memory[0]}}
		local[0].SetLen(len(memory))
		var n int
		var err error
		if direction == worker.Store {
			n, err = unix.ProcessVMReadv(p.pid, local, pieces, 0)
		} else {
			n, err = unix.ProcessVMWritev(p.pid, local, pieces, 0)
		}
		if err != nil {
			return fmt.Errorf("process_vm: process %d: %w", p.pid, err)
		}
		if n <= 0 {
			return fmt.Errorf("process_vm: process %d: nothing moved of %d bytes", p.pid, len(memory))
		}
		memory = memory[n:]
		for n > 0 { // a short transfer ends inside a piece
			take := min(n, pieces[0].Len)
			pieces[0].Base += uintptr(take)
			pieces[0].Len -= take
			n -= take
			if pieces[0].Len == 0 {
				pieces = pieces[1:]
			}
		}
	}
	return nil
}
