package disk

import (
	"errors"
	"io"
	"syscall"
)

// Errors that done functions and Open are given.
var (
	// ErrOutOfService: the disk has failed or is too slow, and is not asked.
	ErrOutOfService = errors.New("the disk is out of service")
	// ErrGone: the chunk is not on the disk, or not any more.
	ErrGone = errors.New("the chunk is not on the disk")
	// ErrDamaged: the chunk's bytes are not those that were stored.
	ErrDamaged = errors.New("the chunk's bytes on the disk are damaged")
	// ErrFull: the file system has no room, and no region can be given up.
	ErrFull = errors.New("the disk is full")
	// ErrClosed: the tier is being closed.
	ErrClosed = errors.New("the disk tier is closed")
	// ErrNoEntry: the tier can't tell more chunks, namespaces or salt tags apart.
	ErrNoEntry = errors.New("the catalog of the disk tier is full")
	// ErrSource: the bytes that were to be written are not those of the chunk's
	// checksums.
	ErrSource = errors.New("the chunk's bytes in memory are damaged")
	// ErrTooSmall: not even a few regions fit the configured size.
	ErrTooSmall = errors.New("the disk tier is too small")
	// ErrUncertain: a reset or removal is done, but may be undone by a restart,
	// because the disk did not take it.
	ErrUncertain = errors.New("the disk did not take note in time; after a restart it may be undone")
)

// errLate: a call has not returned by its deadline.
var errLate = errors.New("the disk did not answer in time")

// ErrorKind classifies what goes wrong with the disk, for counters.
type ErrorKind uint8

// The kinds.
const (
	KindTimeout ErrorKind = iota
	KindIO
	KindShort
	KindFull
	KindDamaged
	ErrorKinds
)

// String returns the kind's name in metrics.
func (k ErrorKind) String() string {
	return [ErrorKinds + 1]string{"timeout", "io", "short", "full", "damaged", "unknown"}[min(k, ErrorKinds)]
}

func kindOf(err error) ErrorKind {
	switch {
	case errors.Is(err, errLate):
		return KindTimeout
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return KindFull
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrShortWrite):
		return KindShort
	case errors.Is(err, ErrDamaged):
		return KindDamaged
	}
	return KindIO
}
