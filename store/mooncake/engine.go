package mooncake

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Limits of one call. They bound what an engine has to hold, and what one call
// can make others wait.
const (
	// MaxKeyBytes is the longest key.
	MaxKeyBytes = 1024
	// MaxTransfer is the largest number of objects of a put or a get: transfers to
	// one peer queue behind each other, and their queue is bounded.
	MaxTransfer = 512
	// MaxKeys is the largest number of keys of a question or a removal.
	MaxKeys = 4096
	// MaxQuestion is how long an engine may be busy with a question that nobody waits
	// for any more.
	MaxQuestion = time.Minute
)

// ErrNoTurn: the caller's context ended while it waited for calls before. Nothing
// was asked.
var ErrNoTurn = errors.New("no turn")

// Range is a piece of the engine's memory.
type Range struct {
	Offset, Bytes uint64
}

// Object is a key and the memory that its bytes are in, or go to.
type Object struct {
	Key   string
	Range Range
}

// Answer is what was said of one key: what the call counts, or a Code, which is
// negative.
type Answer int64

// Code returns the answer's code, 0 for an answer that is none.
func (a Answer) Code() Code {
	if a >= 0 {
		return 0
	}
	return Code(max(a, -1<<31))
}

// Replication says how the objects of a put are kept.
type Replication struct {
	// Replicas is the number of copies; 0 means one. With fewer segments there are
	// fewer.
	Replicas int
	// SoftPin: evicted when nothing else can go.
	SoftPin bool
	// HardPin: not evicted.
	HardPin bool
	// PreferredSegments are the names of the segments (host:port) to use when they
	// have room.
	PreferredSegments []string
}

// Health is what an engine says of itself.
type Health struct {
	// Ready: calls are taken.
	Ready bool
	// Reason says why not, in words for an operator; empty when ready.
	Reason string
	// Note is what an operator should know of an engine that is ready, empty for
	// nothing.
	Note string
	// Versions are of what the engine is made of, by name.
	Versions map[string]string
	// Segment is the name of the memory that the engine lends the cluster.
	Segment string
	// Starts counts how often the engine was set up.
	Starts uint64
}

// Engine reaches a cluster. All methods are safe for concurrent use.
//
// A call's error means that nothing is known of its keys; it is
// store.ErrUnavailable when the cluster can't be reached, ErrNoTurn with the
// context's when it was not asked, else the call was wrong and nothing was done. Answers are in the order of the keys.
//
// Put and Get end only when the engine does not touch the ranges any more,
// whatever becomes of ctx: it ends the wait for a turn, not the transfer. They are
// bounded by the engine's own time limit. The other calls end with ctx.
//
// REQUIRES: at most MaxTransfer objects or MaxKeys keys; keys of 1 to MaxKeyBytes
// bytes without zero bytes; no key twice in a Put or a Get; ranges inside the
// memory, not empty, and no byte in two ranges of calls that are under way, but
// for puts. CheckKeys and CheckObjects say whether that is so.
type Engine interface {
	// Exist answers 1 for an object that is there and complete, 0 for none. Where
	// it is, it gets a lease.
	Exist(ctx context.Context, keys []string) ([]Answer, error)
	// Put stores objects. 0: it is there now, or was; what was is not replaced.
	Put(ctx context.Context, how Replication, objects []Object) ([]Answer, error)
	// Get reads objects whole into ranges, and answers how long they were. An
	// object that is longer than its range is CodeInvalidParams.
	Get(ctx context.Context, objects []Object) ([]Answer, error)
	// Remove removes objects. 0: it was there. One that somebody reads, or has just
	// asked for, is there yet: CodeHasLease.
	Remove(ctx context.Context, keys []string) ([]Answer, error)
	// RemovePrefix removes the objects whose keys begin so, and returns how many. Those
	// with a lease stay, and nobody says that there are any.
	//
	// REQUIRES: at least MinPrefixBytes bytes: a slip must not empty the cluster.
	RemovePrefix(ctx context.Context, prefix string) (int, error)
	// Health returns what is known without asking anybody.
	Health() Health
}

// MinPrefixBytes is the shortest prefix by which keys may be removed.
const MinPrefixBytes = 4

// CheckKey reports why a key can't be used.
func CheckKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("mooncake: an empty key")
	case len(key) > MaxKeyBytes:
		return fmt.Errorf("mooncake: a key of %d bytes, at most %d are possible: %.64q…", len(key), MaxKeyBytes, key)
	}
	if strings.IndexByte(key, 0) >= 0 {
		return fmt.Errorf("mooncake: a key with a zero byte: %.64q", key)
	}
	return nil
}

// CheckKeys reports why a question about keys can't be asked.
func CheckKeys(keys []string) error {
	if len(keys) > MaxKeys {
		return fmt.Errorf("mooncake: %d keys in a call, at most %d are possible", len(keys), MaxKeys)
	}
	for _, key := range keys {
		if err := CheckKey(key); err != nil {
			return err
		}
	}
	return nil
}

// CheckObjects reports why objects can't be put or got. TCP transfers take any
// address, registered or not, and two gets of one key in one call fill one of the
// ranges only, while both are answered as filled: so it is looked at here.
func CheckObjects(memoryBytes uint64, objects []Object) error {
	if len(objects) > MaxTransfer {
		return fmt.Errorf("mooncake: %d objects in a call, at most %d are possible", len(objects), MaxTransfer)
	}
	seen := make(map[string]struct{}, len(objects))
	for i := range objects {
		o := &objects[i]
		if err := CheckKey(o.Key); err != nil {
			return err
		}
		if _, twice := seen[o.Key]; twice {
			return fmt.Errorf("mooncake: key %q is twice in a call", o.Key)
		}
		seen[o.Key] = struct{}{}
		if r := o.Range; r.Bytes == 0 || r.Offset > memoryBytes || r.Bytes > memoryBytes-r.Offset {
			return fmt.Errorf("mooncake: range [%d, +%d) of key %q is not inside the registered %d bytes", r.Offset, r.Bytes, o.Key, memoryBytes)
		}
	}
	return nil
}

// CheckPrefix reports why keys can't be removed by a prefix.
func CheckPrefix(prefix string) error {
	if len(prefix) < MinPrefixBytes {
		return fmt.Errorf("mooncake: a removal by the prefix %q: it takes %d bytes at least", prefix, MinPrefixBytes)
	}
	return CheckKey(prefix)
}
