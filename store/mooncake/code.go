package mooncake

import (
	"fmt"

	"github.com/mooncake-sidecar/sidecar/store"
)

// Code is one of Mooncake Store's error codes (mooncake-store, types.h): negative.
type Code int32

// The codes that something here depends on.
const (
	CodeInternal       Code = -1
	CodeNoSpace        Code = -200
	CodeInvalidParams  Code = -600
	CodeNotReady       Code = -703
	CodeNotFound       Code = -704
	CodeHasLease       Code = -706
	CodeLeaseExpired   Code = -707
	CodeTransferFailed Code = -800
	CodeRPCFailed      Code = -900
	CodeRPCTimeout     Code = -901
	CodeUnavailable    Code = -1010
)

// String returns the name that Mooncake gives a code, and its number.
func (c Code) String() string {
	name, ok := c.name()
	if !ok {
		return fmt.Sprintf("Mooncake code %d", int32(c))
	}
	return fmt.Sprintf("%s (%d)", name, int32(c))
}

func (c Code) name() (string, bool) {
	switch c {
	case 0:
		return "OK", true
	case CodeInternal:
		return "INTERNAL_ERROR", true
	case -10:
		return "BUFFER_OVERFLOW", true
	case -100:
		return "SHARD_INDEX_OUT_OF_RANGE", true
	case -101:
		return "SEGMENT_NOT_FOUND", true
	case -102:
		return "SEGMENT_ALREADY_EXISTS", true
	case -103:
		return "CLIENT_NOT_FOUND", true
	case CodeNoSpace:
		return "NO_AVAILABLE_HANDLE", true
	case -300:
		return "INVALID_VERSION", true
	case -400:
		return "INVALID_KEY", true
	case -500:
		return "WRITE_FAIL", true
	case CodeInvalidParams:
		return "INVALID_PARAMS", true
	case -701:
		return "INVALID_WRITE", true
	case -702:
		return "INVALID_READ", true
	case CodeNotReady:
		return "REPLICA_IS_NOT_READY", true
	case CodeNotFound:
		return "OBJECT_NOT_FOUND", true
	case -705:
		return "OBJECT_ALREADY_EXISTS", true
	case CodeHasLease:
		return "OBJECT_HAS_LEASE", true
	case CodeLeaseExpired:
		return "LEASE_EXPIRED", true
	case CodeTransferFailed:
		return "TRANSFER_FAIL", true
	case -801:
		return "CHECKSUM_MISMATCH", true
	case CodeRPCFailed:
		return "RPC_FAIL", true
	case CodeRPCTimeout:
		return "RPC_TIMEOUT", true
	case CodeUnavailable:
		return "UNAVAILABLE_IN_CURRENT_STATUS", true
	}
	return "", false
}

// MasterGone tells whether the code says that the master does not answer, so that
// nothing can be said of any key. As a get's answer it may be that of one node that
// has the object on its disk.
func (c Code) MasterGone() bool {
	return c == CodeRPCFailed || c == CodeRPCTimeout || c == CodeUnavailable
}

// Error is a failure that Mooncake has a code for.
type Error struct {
	// Op is what was asked: put, get, exist, remove, setup.
	Op string
	// Code is Mooncake's.
	Code Code
	// Text says more, where there is more to say.
	Text string
}

// Error implements error.
func (e *Error) Error() string {
	text := fmt.Sprintf("mooncake: %s: %s", e.Op, e.Code)
	if e.Text != "" {
		text += ": " + e.Text
	}
	return text
}

// Unwrap makes a master that does not answer store.ErrUnavailable.
func (e *Error) Unwrap() error {
	if e.Code.MasterGone() {
		return store.ErrUnavailable
	}
	return nil
}
