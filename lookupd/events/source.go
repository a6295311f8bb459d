package events

import "github.com/mooncake-sidecar/sidecar/internal/kv"

// Kind says what happened.
type Kind uint8

// The kinds of change.
const (
	// Stored: a chunk is there with all its shards.
	Stored Kind = iota + 1
	// Removed: it is no more.
	Removed
	// Cleared: a namespace was reset; no removal is told of what it held.
	Cleared
	// Opened: a namespace is new to the store.
	Opened
)

// Namespace names a namespace: the digest of its spec.
type Namespace [32]byte

// Change is what happened to a chunk in one medium.
type Change struct {
	Seq       uint64 // from 1, without gaps; of the source
	Kind      Kind
	Namespace Namespace
	Group     uint32
	Hash      kv.Hash
	Record    uint32 // the chunk's number in the source, while it is there
}

// Source is what holds chunks in one medium.
type Source interface {
	// Changes appends what happened after the change numbered after, at most limit
	// entries. complete is false when older entries than the first one are lost.
	Changes(dst []Change, after uint64, limit int) (changes []Change, complete bool)
	// Walk appends the chunks among some records from one on. next is where the
	// following call goes on, 0 at the end; the answer takes account of the changes up
	// to seq and of no later one.
	Walk(dst []Change, from uint32) (chunks []Change, next uint32, seq uint64)
}

// Known is a namespace that the store has.
type Known struct {
	Digest Namespace
	Spec   *kv.NamespaceSpec
}

// Catalog tells what the namespaces are.
type Catalog interface {
	// Namespaces returns those that the store has at present, always in the same
	// order: of two with one topic the later one has another.
	Namespaces() []Known
}

// Sink sends a batch to whoever has subscribed to the topic. It does not wait for
// them.
type Sink interface {
	Publish(topic string, seq uint64, payload []byte) error
}
