package connector

import (
	"encoding/binary"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// MaxOffered bounds the references of one offer.
const MaxOffered = 512

// Follow is sent by a store client on its open session, if Registered says that
// it may: it loads for an engine, and wants to be offered references on what that
// engine's lookups find. It takes the place of an earlier one for the engine.
type Follow struct {
	Type string `msgpack:"t"`
	// Engine is the holder of the engine's leases.
	Engine string `msgpack:"engine"`
	// ShardByGroup is the first shard of each group that is loaded, HeldShards how
	// many there are from there on. No groups: the engine is followed no more.
	ShardByGroup []int `msgpack:"shard_by_group"`
	HeldShards   int   `msgpack:"held_shards"`
}

func (m *Follow) check() error {
	if len(m.ShardByGroup) > maxGroups {
		return fmt.Errorf("shards of %d groups, at most %d are accepted", len(m.ShardByGroup), maxGroups)
	}
	for g, shard := range m.ShardByGroup {
		if shard < 0 || m.HeldShards < 1 || shard > kv.MaxShards || m.HeldShards > kv.MaxShards-shard {
			return fmt.Errorf("group %d: %d shards from %d on", g, m.HeldShards, shard)
		}
	}
	return checkText(m.Engine)
}

// Offer hands a client that follows an engine references on all that a load of a
// lookup's hit will ask for. They are the client's, as if it had got them: it
// releases those that it has used and declines the rest.
type Offer struct {
	Type string `msgpack:"t"`
	// Engine and Request name the lease of the lookup.
	Engine  string `msgpack:"engine"`
	Request string `msgpack:"request"`
	// Namespace and Generation are the store's name of the namespace.
	Namespace  uint32 `msgpack:"namespace"`
	Generation uint64 `msgpack:"generation"`
	// Removals is how often something had been removed from the segment: once it is
	// more, the offer is void.
	Removals uint64 `msgpack:"removals"`
	// LifeMS is how long the client may keep what it does not use.
	LifeMS int `msgpack:"life_ms"`
	// Items are rows of OfferedBytes, see AppendOffered, in the order of a load: by
	// group, then by chunk, then by shard.
	Items []byte `msgpack:"items"`
}

// Offered is an item of an offer.
type Offered struct {
	Group, Shard    uint32
	Bytes, Checksum uint32
	Ref, Offset     uint64
	Hash            kv.Hash
}

// OfferedBytes is the length of an item's row.
const OfferedBytes = 4*4 + 2*8 + kv.MaxHashBytes

// maxOfferLifeMS bounds an offer's life: an hour, as a lease's.
const maxOfferLifeMS = 3_600_000

// AppendOffered appends an item's row: its numbers in the order of their fields,
// little-endian, and the hash.
func AppendOffered(rows []byte, it *Offered) []byte {
	for _, n := range []uint32{it.Group, it.Shard, it.Bytes, it.Checksum} {
		rows = binary.LittleEndian.AppendUint32(rows, n)
	}
	rows = binary.LittleEndian.AppendUint64(rows, it.Ref)
	rows = binary.LittleEndian.AppendUint64(rows, it.Offset)
	return append(rows, it.Hash[:]...)
}

// Len is the number of its items.
func (m *Offer) Len() int { return len(m.Items) / OfferedBytes }

// At returns an item.
func (m *Offer) At(i int) Offered {
	row := m.Items[i*OfferedBytes:][:OfferedBytes]
	le := binary.LittleEndian
	return Offered{
		Group: le.Uint32(row), Shard: le.Uint32(row[4:]), Bytes: le.Uint32(row[8:]), Checksum: le.Uint32(row[12:]),
		Ref: le.Uint64(row[16:]), Offset: le.Uint64(row[24:]), Hash: kv.Hash(row[32:]),
	}
}

func (m *Offer) check() error {
	if n := len(m.Items); n%OfferedBytes != 0 || n > MaxOffered*OfferedBytes {
		return fmt.Errorf("items of %d bytes, want rows of %d, at most %d", n, OfferedBytes, MaxOffered)
	}
	if m.LifeMS < 0 || m.LifeMS > maxOfferLifeMS {
		return fmt.Errorf("life_ms is %d, want 0 to %d", m.LifeMS, maxOfferLifeMS)
	}
	return checkText(m.Engine, m.Request)
}

// Decline gives back references of offers that the client has not used.
type Decline struct {
	Type string   `msgpack:"t"`
	Refs []uint64 `msgpack:"refs"`
}

func (m *Decline) check() error { return nil }
