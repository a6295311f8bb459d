package kvevents

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Media of blocks, as vLLM spells them. Others may be met; compare without regard
// to case, and take none of them for the GPU.
const (
	MediumGPU     = "GPU"
	MediumCPU     = "CPU"
	MediumStorage = "STORAGE"
)

// Hash is the low 64 bits of a block hash: its last eight bytes, the first of them
// the highest.
type Hash uint64

const hashBytes = 8

// HashOf returns the wire form of a block hash. A hash shorter than eight bytes is
// none of vLLM's.
func HashOf(block []byte) Hash {
	if len(block) < hashBytes {
		return 0
	}
	return Hash(binary.BigEndian.Uint64(block[len(block)-hashBytes:]))
}

// Batch is what one message on the stream has.
type Batch struct {
	// Time is in seconds since 1970.
	Time   float64
	Events []Event
	// Rank is the publisher's data-parallel rank, nil when it has none.
	Rank *int
	// Doubtful: an event could not be read that may have taken blocks back, one that is
	// no BlockStored. Nothing that the publisher had told before it is certain any more;
	// Events are those behind it.
	Doubtful bool
}

// Event is BlockStored, BlockRemoved or AllBlocksCleared.
type Event interface{ kind() string }

// BlockStored says that blocks are held from now on, or that one more copy of them
// is: a publisher may announce a hash several times, and takes it back as often.
type BlockStored struct {
	Hashes []Hash
	// Parent is the hash of the block before the first, nil when there is none or
	// when it is not known, see TokenIDs.
	Parent *Hash
	// TokenIDs are those of all blocks. None, with BlockSize 0: the publisher does
	// not know them, and whoever does knows the blocks by their hashes.
	TokenIDs  []uint32
	BlockSize int
	LoraID    *int64
	// Medium is empty when the publisher does not say.
	Medium   string
	LoraName string
	// Group is the KV-cache group, SpecKind and Window what it is like; nil, empty
	// and 0 when the publisher does not say.
	Group    *int
	SpecKind string
	Window   int
	// HasExtraKeys: more than tokens went into the hashes. ExtraKeys are the bytes of
	// the list as it came, one entry a hash, for those who hash anew.
	HasExtraKeys bool
	ExtraKeys    []byte
	// Tenant and Backend are named by a store that serves several: Mooncake's master.
	// ObjectKey is the name of what it holds, which it may tell in place of hashes.
	Tenant, Backend string
	ObjectKey       []byte
}

// BlockRemoved says that blocks, or one copy of them, are held no more.
type BlockRemoved struct {
	Hashes []Hash
	Medium string
	Group  *int
	// Tenant, Backend and ObjectKey as in BlockStored.
	Tenant, Backend string
	ObjectKey       []byte
}

// AllBlocksCleared says that nothing of what the publisher has told of is held any
// more.
type AllBlocksCleared struct{}

func (*BlockStored) kind() string      { return kindStored }
func (*BlockRemoved) kind() string     { return kindRemoved }
func (*AllBlocksCleared) kind() string { return kindCleared }

const (
	kindStored  = "BlockStored"
	kindRemoved = "BlockRemoved"
	kindCleared = "AllBlocksCleared"
)

// ErrMalformed: the bytes are no batch.
var ErrMalformed = errors.New("malformed KV-event batch")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}
