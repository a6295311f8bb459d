package mooncake

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// canary is a small object of this client's own. While it is asked for it has a lease,
// so that nobody evicts it: when it has gone, so may have all else. When this client
// ends, the cluster evicts it in its time.
type canary struct {
	key string
	put bool // it was there
}

// Beat asks the cluster for the canary, and puts it where there is none: so that a
// cluster that has stopped to answer is noticed though nobody asks it, and one that
// has begun anew. forgot: the canary was there, and is not any more. It waits for a put
// as long as the engine does.
//
// REQUIRES: one call at a time.
func (c *Client) Beat(ctx context.Context) (forgot bool, err error) {
	if !c.enter() {
		return false, errClosed
	}
	defer c.calls.Done()
	if err := c.probe(ctx); err != nil {
		return false, err
	}
	if c.canary.key == "" {
		var name [16]byte
		rand.Read(name[:])
		c.canary.key = "mooncake-sidecar@canary@" + hex.EncodeToString(name[:])
	}
	there, err := c.askCanary(ctx)
	if err != nil || there || c.cfg.Canary.Bytes == 0 {
		return false, err
	}
	forgot, c.canary.put = c.canary.put, false
	if c.Full() {
		return forgot, nil
	}
	answers, err := c.cfg.Engine.Put(ctx, Replication{}, []Object{{Key: c.canary.key, Range: c.cfg.Canary}})
	c.mu.Lock()
	defer c.mu.Unlock()
	if err = c.noteLocked("put", answers, err); err != nil {
		return forgot, fmt.Errorf("canary: %w", err)
	}
	c.canary.put = answers[0] >= 0
	return forgot, nil
}

func (c *Client) askCanary(ctx context.Context) (there bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	answers, err := c.cfg.Engine.Exist(ctx, []string{c.canary.key})
	c.mu.Lock()
	defer c.mu.Unlock()
	if err = c.noteLocked("exist", answers, err); err != nil {
		return false, fmt.Errorf("canary: %w", err)
	}
	return answers[0] == 1, nil
}
