package router

import (
	"container/list"
	"context"
	"crypto/sha256"
	"sync"
)

// tokenKey names what token ids were asked for. It is a cryptographic hash, for ids may
// be sent in place of a prompt: somebody who found two prompts of one key could have
// another's answered.
type tokenKey [sha256.Size]byte

// tokenCache remembers token ids, and has each asked for once however many wait for
// them. What was asked longest ago is forgotten first.
type tokenCache struct {
	maxBytes int64

	mu struct {
		sync.Mutex
		bytes   int64
		entries map[tokenKey]*list.Element // of *tokenEntry
		order   list.List                  // the latest first
		asked   map[tokenKey]*question
		counts  tokenCounts
	}
}

type tokenEntry struct {
	key tokenKey
	ids []byte
}

// question is one that is being asked.
type question struct {
	done chan struct{}
	// ids and err are set when done is closed.
	ids []byte
	err error
}

// tokenCounts are the cache's since the start.
type tokenCounts struct{ Hits, Asked, Joined, Failed uint64 }

// entryBytes is what an entry takes besides its ids, about.
const entryBytes = 256

func newTokenCache(maxBytes int64) *tokenCache {
	c := &tokenCache{maxBytes: maxBytes}
	c.mu.entries, c.mu.asked = map[tokenKey]*list.Element{}, map[tokenKey]*question{}
	return c
}

// get returns token ids. If they are not known it has begin called, unless somebody has
// asked before, and waits for the answer until ctx ends. begin is to have answer called
// later, whatever becomes of ctx.
func (c *tokenCache) get(ctx context.Context, key tokenKey, begin func(answer func([]byte, error))) ([]byte, error) {
	c.mu.Lock()
	if e, ok := c.mu.entries[key]; ok {
		c.mu.order.MoveToFront(e)
		c.mu.counts.Hits++
		entry, _ := e.Value.(*tokenEntry)
		c.mu.Unlock()
		return entry.ids, nil
	}
	q, ok := c.mu.asked[key]
	if ok {
		c.mu.counts.Joined++
		c.mu.Unlock()
	} else {
		q = &question{done: make(chan struct{})}
		c.mu.asked[key] = q
		c.mu.counts.Asked++
		c.mu.Unlock()
		begin(func(ids []byte, err error) { c.answer(key, q, ids, err) })
	}
	select {
	case <-q.done:
		return q.ids, q.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// answer ends a question.
func (c *tokenCache) answer(key tokenKey, q *question, ids []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q.ids, q.err = ids, err
	close(q.done)
	delete(c.mu.asked, key)
	if err != nil {
		c.mu.counts.Failed++
		return
	}
	size := int64(len(ids)) + entryBytes
	if size > c.maxBytes {
		return
	}
	c.mu.entries[key] = c.mu.order.PushFront(&tokenEntry{key, ids})
	for c.mu.bytes += size; c.mu.bytes > c.maxBytes; {
		oldest := c.mu.order.Back()
		entry, _ := c.mu.order.Remove(oldest).(*tokenEntry)
		delete(c.mu.entries, entry.key)
		c.mu.bytes -= int64(len(entry.ids)) + entryBytes
	}
}

func (c *tokenCache) counts() (tokenCounts, int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.counts, c.mu.bytes
}
