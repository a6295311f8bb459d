package mooncakec

import (
	"context"
	"fmt"
	"slices"

	"github.com/mooncake-sidecar/sidecar/store/mooncake"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/native"
)

// Exist implements mooncake.Engine.
func (e *Engine) Exist(ctx context.Context, keys []string) ([]mooncake.Answer, error) {
	if err := mooncake.CheckKeys(keys); err != nil {
		return nil, err
	}
	keys = slices.Clone(keys)
	return e.call(ctx, laneExist, len(keys), nil, func(c *connection) ([]mooncake.Answer, error) { return c.client.exist(keys) })
}

// Put implements mooncake.Engine.
func (e *Engine) Put(ctx context.Context, how mooncake.Replication, objects []mooncake.Object) ([]mooncake.Answer, error) {
	if err := mooncake.CheckObjects(uint64(len(e.cfg.Memory)), objects); err != nil {
		return nil, err
	}
	if err := native.CheckHow(&how); err != nil {
		return nil, err
	}
	how.PreferredSegments, objects = slices.Clone(how.PreferredSegments), slices.Clone(objects)
	return e.call(ctx, lanePut, len(objects), objects, func(c *connection) ([]mooncake.Answer, error) { return c.client.put(c.memory, &how, objects) })
}

// Get implements mooncake.Engine.
func (e *Engine) Get(ctx context.Context, objects []mooncake.Object) ([]mooncake.Answer, error) {
	if err := mooncake.CheckObjects(uint64(len(e.cfg.Memory)), objects); err != nil {
		return nil, err
	}
	objects = slices.Clone(objects)
	return e.call(ctx, laneGet, len(objects), objects, func(c *connection) ([]mooncake.Answer, error) { return c.client.get(c.memory, objects) })
}

// Remove implements mooncake.Engine. Not by force: memory that others have a lease on
// would be given away while they read it.
func (e *Engine) Remove(ctx context.Context, keys []string) ([]mooncake.Answer, error) {
	if err := mooncake.CheckKeys(keys); err != nil {
		return nil, err
	}
	keys = slices.Clone(keys)
	return e.call(ctx, laneRemove, len(keys), nil, func(c *connection) ([]mooncake.Answer, error) { return c.client.remove(keys, false) })
}

// RemovePrefix implements mooncake.Engine.
func (e *Engine) RemovePrefix(ctx context.Context, prefix string) (int, error) {
	if err := mooncake.CheckPrefix(prefix); err != nil {
		return 0, err
	}
	answers, err := e.call(ctx, laneRemove, 1, nil, func(c *connection) ([]mooncake.Answer, error) {
		n, err := c.client.removeRegex(native.Expression(prefix))
		return []mooncake.Answer{mooncake.Answer(n)}, err
	})
	if err != nil {
		return 0, err
	}
	return int(answers[0]), nil
}

// call makes a call about n keys, objects being those of a transfer. The caller may be
// answered before the library has read what the call is about, so that is a copy.
func (e *Engine) call(ctx context.Context, number, n int, objects []mooncake.Object, do func(*connection) ([]mooncake.Answer, error)) ([]mooncake.Answer, error) {
	op := lanes[number].op
	s, err := e.notice.Session(op)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, nil
	}
	ranges := make([]mooncake.Range, len(objects))
	for i := range objects {
		ranges[i] = objects[i].Range
	}
	answers, err := s.call(ctx, number, ranges, func() ([]mooncake.Answer, error) { return do(s.c) })
	if err != nil {
		return nil, fmt.Errorf("mooncake: %s: %w", op, err)
	}
	return answers, nil
}
