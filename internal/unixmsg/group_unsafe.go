package unixmsg

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxGroups bounds a peer's supplementary groups, as the kernel does.
const maxGroups = 1 << 16

// OwnGroupToo allows, besides our own user and root, peers in our own effective
// group, be it their first or a supplementary one.
func OwnGroupToo(p Peer) error {
	err := SameUserOrRoot(p)
	if err == nil || p.GID == os.Getegid() || slices.Contains(p.Groups, os.Getegid()) {
		return nil
	}
	return fmt.Errorf("%w, or a member of group %d", err, os.Getegid())
}

// peerGroups asks the kernel for the supplementary groups that a peer had when it
// connected.
func peerGroups(fd int) ([]int, error) {
	groups := make([]uint32, 64)
	for {
		size := uint32(len(groups) * 4)
		// The kernel writes at most size bytes into groups, and how many into size.
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			out := make([]int, size/4)
			for i := range out {
				out[i] = int(groups[i])
			}
			return out, nil
		case errors.Is(errno, unix.ERANGE) && size/4 <= maxGroups:
			groups = make([]uint32, size/4)
		case errors.Is(errno, unix.ENOPROTOOPT):
			return nil, nil // a sandbox's kernel that knows no groups of peers: the first one has to do
		default:
			return nil, fmt.Errorf("peer groups: %w", errno)
		}
	}
}
