package mooncaketest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// Rig is an engine under test.
type Rig struct {
	Engine mooncake.Engine
	// Memory is what it has registered, at least a MiB.
	Memory []byte
}

// check is one check's share of a rig: keys of its own.
type check struct {
	*testing.T
	Rig
	prefix string
}

// TestEngine checks the behaviour that users of an engine rely on. The cluster may
// be in use: keys are those of this run.
func TestEngine(t *testing.T, rig Rig) {
	run := fmt.Sprintf("engine-test@%x@", time.Now().UnixNano())
	for name, f := range map[string]func(*check){
		"what is put is got":                    putAndGet,
		"many objects in one call":              manyObjects,
		"a put of what is there changes none":   putAgain,
		"what is absent is said to be":          absentKeys,
		"an object of another length":           otherLength,
		"objects of several pieces":             largeObjects,
		"a large object of another length":      otherLargeLength,
		"removal by key":                        removeKeys,
		"removal of what has a lease":           removeLeased,
		"removal by prefix":                     removePrefix,
		"a prefix is no pattern":                removeMeta,
		"ranges outside the memory":             outside,
		"a key twice in a call":                 twice,
		"keys that are none":                    badKeys,
		"too much for one call":                 tooMuch,
		"nothing in a call":                     nothing,
		"a call whose context is done":          done,
		"calls at once":                         atOnce,
		"pins and replicas are taken":           howKept,
		"keys of any characters but zero":       oddKeys,
		"neighbours of a range are not touched": neighbours,
	} {
		t.Run(name, func(t *testing.T) {
			f(&check{T: t, Rig: rig, prefix: run + strings.ReplaceAll(name, " ", "-") + "@"})
		})
	}
	if _, err := rig.Engine.RemovePrefix(t.Context(), run); err != nil {
		t.Error(err)
	}
}

func (c *check) key(i int) string { return fmt.Sprintf("%s%d", c.prefix, i) }

// objects are n objects of that many bytes, back to back from an offset on.
func (c *check) objects(n int, size, from uint64) []mooncake.Object {
	objects := make([]mooncake.Object, n)
	for i := range objects {
		objects[i] = mooncake.Object{Key: c.key(i), Range: mooncake.Range{Offset: from + uint64(i)*size, Bytes: size}}
	}
	return objects
}

func (c *check) at(r mooncake.Range) []byte { return c.Memory[r.Offset:][:r.Bytes] }

func pattern(i int, n uint64) []byte {
	b := make([]byte, n)
	for k := range b {
		b[k] = byte(i*31 + k*7 + k>>8)
	}
	return b
}

func (c *check) fill(objects []mooncake.Object) {
	for i := range objects {
		copy(c.at(objects[i].Range), pattern(i, objects[i].Range.Bytes))
	}
}

func (c *check) clear(objects []mooncake.Object) {
	for i := range objects {
		clear(c.at(objects[i].Range))
	}
}

// want checks a call's answers: one, for all of them.
func (c *check) want(answers []mooncake.Answer, err error, n int, want mooncake.Answer) {
	c.Helper()
	if err != nil || len(answers) != n {
		c.Fatalf("%d answers, %v; want %d", len(answers), err, n)
	}
	for i, a := range answers {
		if a != want {
			c.Fatalf("answer %d is %d (%s), want %d", i, a, a.Code(), want)
		}
	}
}

func (c *check) put(objects []mooncake.Object) {
	c.Helper()
	answers, err := c.Engine.Put(c.Context(), mooncake.Replication{}, objects)
	c.want(answers, err, len(objects), 0)
}

func (c *check) exist(keys ...string) []mooncake.Answer {
	c.Helper()
	answers, err := c.Engine.Exist(c.Context(), keys)
	if err != nil {
		c.Fatal(err)
	}
	return answers
}

// same checks that objects were got as put.
func (c *check) same(objects []mooncake.Object) {
	c.Helper()
	for i := range objects {
		if !bytes.Equal(c.at(objects[i].Range), pattern(i, objects[i].Range.Bytes)) {
			c.Fatalf("object %d has other bytes", i)
		}
	}
}

func putAndGet(c *check) {
	objects := c.objects(3, 5000, 0)
	c.fill(objects)
	c.put(objects)
	c.want(c.exist(c.key(0), c.key(1), c.key(2)), nil, 3, 1)
	c.clear(objects)
	answers, err := c.Engine.Get(c.Context(), objects)
	c.want(answers, err, 3, 5000)
	c.same(objects)
}

func manyObjects(c *check) {
	objects := c.objects(mooncake.MaxTransfer, 1024, 4096)
	c.fill(objects)
	c.put(objects)
	c.clear(objects)
	answers, err := c.Engine.Get(c.Context(), objects)
	c.want(answers, err, len(objects), 1024)
	c.same(objects)
	for i := range objects {
		objects[i].Key += "@not-got"
	}
	c.put(objects)
	answers, err = c.Engine.Remove(c.Context(), keysOf(objects))
	c.want(answers, err, len(objects), 0)
}

func putAgain(c *check) {
	objects := c.objects(1, 4096, 0)
	c.fill(objects)
	c.put(objects)
	c.clear(objects)
	c.put(objects)
	answers, err := c.Engine.Get(c.Context(), objects)
	c.want(answers, err, 1, 4096)
	c.same(objects)
}

func absentKeys(c *check) {
	objects := c.objects(2, 4096, 0)
	c.fill(objects)
	c.put(objects[1:])
	if got := c.exist(c.key(0), c.key(1)); got[0] != 0 || got[1] != 1 {
		c.Errorf("exist: %v", got)
	}
	answers, err := c.Engine.Get(c.Context(), objects)
	if err != nil || answers[0].Code() != mooncake.CodeNotFound || answers[1] != 4096 {
		c.Errorf("get: %v, %v", answers, err)
	}
}

func otherLength(c *check) {
	objects := c.objects(1, 4096, 0)
	c.fill(objects)
	c.put(objects)
	longer, shorter := objects[0], objects[0]
	longer.Range = mooncake.Range{Offset: 8192, Bytes: 8192}
	shorter.Range = mooncake.Range{Offset: 8192, Bytes: 100}
	answers, err := c.Engine.Get(c.Context(), []mooncake.Object{longer})
	c.want(answers, err, 1, 4096)
	copy(c.Memory[8292:], "untouched")
	answers, err = c.Engine.Get(c.Context(), []mooncake.Object{shorter})
	c.want(answers, err, 1, mooncake.Answer(mooncake.CodeInvalidParams))
	if !bytes.Equal(c.Memory[8292:8301], []byte("untouched")) {
		c.Error("a get wrote behind its range")
	}
}

// largeObjects are got in pieces by some engines; their lengths are of none.
func largeObjects(c *check) {
	clear(c.Memory[:1<<20])
	objects, at := c.objects(4, 0, 0), uint64(100)
	for i, size := range []uint64{1, 300_001, 256 << 10, 450_007} {
		objects[i].Range = mooncake.Range{Offset: at, Bytes: size}
		at += size + 100
	}
	c.fill(objects)
	c.put(objects)
	c.clear(objects)
	answers, err := c.Engine.Get(c.Context(), objects)
	for i, o := range objects {
		if err != nil || answers[i] != mooncake.Answer(o.Range.Bytes) {
			c.Fatalf("get of object %d of %d bytes: %v, %v", i, o.Range.Bytes, answers, err)
		}
		if behind := c.Memory[o.Range.Offset+o.Range.Bytes]; behind != 0 {
			c.Errorf("a get wrote behind object %d", i)
		}
	}
	c.same(objects)
}

// otherLargeLength: what such a get answers differs, but it is not that all is there.
func otherLargeLength(c *check) {
	objects := c.objects(1, 600_000, 0)
	c.fill(objects)
	c.put(objects)
	for _, bytes := range []uint64{599_999, 300_000, 600_001, 1_000_000} {
		behind := c.Memory[bytes:][:1000]
		clear(behind)
		other := objects[0]
		other.Range.Bytes = bytes
		answers, err := c.Engine.Get(c.Context(), []mooncake.Object{other})
		if err != nil || len(answers) != 1 || answers[0] == mooncake.Answer(bytes) {
			c.Errorf("get of %d bytes of an object of 600,000: %v, %v", bytes, answers, err)
		}
		if slices.Max(behind) != 0 {
			c.Errorf("a get of %d bytes wrote behind its range", bytes)
		}
	}
}

func removeKeys(c *check) {
	objects := c.objects(3, 4096, 0)
	c.fill(objects)
	c.put(objects)
	answers, err := c.Engine.Remove(c.Context(), []string{c.key(0), c.key(7), c.key(2)})
	if err != nil || answers[0] != 0 || answers[1].Code() != mooncake.CodeNotFound || answers[2] != 0 {
		c.Fatalf("remove: %v, %v", answers, err)
	}
	if got := c.exist(c.key(0), c.key(1), c.key(2)); got[0] != 0 || got[1] != 1 || got[2] != 0 {
		c.Errorf("exist: %v", got)
	}
	c.put(objects[:1])
	c.want(c.exist(c.key(0)), nil, 1, 1)
}

// removeLeased: what somebody reads keeps its memory, or others' bytes would come
// into it meanwhile.
func removeLeased(c *check) {
	objects := c.objects(3, 4096, 0)
	c.fill(objects)
	c.put(objects)
	c.want(c.exist(c.key(0)), nil, 1, 1)
	answers, err := c.Engine.Get(c.Context(), objects[1:2])
	c.want(answers, err, 1, 4096)
	answers, err = c.Engine.Remove(c.Context(), []string{c.key(0), c.key(1)})
	c.want(answers, err, 2, mooncake.Answer(mooncake.CodeHasLease))
	if n, err := c.Engine.RemovePrefix(c.Context(), c.prefix); err != nil || n != 1 {
		c.Errorf("%d removed, %v; want the one without a lease", n, err)
	}
	if got := c.exist(c.key(0), c.key(1), c.key(2)); got[0] != 1 || got[1] != 1 || got[2] != 0 {
		c.Errorf("exist: %v", got)
	}
}

func removePrefix(c *check) {
	objects := c.objects(12, 4096, 0)
	c.fill(objects)
	c.put(objects)
	n, err := c.Engine.RemovePrefix(c.Context(), c.key(1)) // 1, 10 and 11
	if err != nil || n != 3 {
		c.Fatalf("%d removed, %v; want 3", n, err)
	}
	if got := c.exist(c.key(0), c.key(1), c.key(10), c.key(2)); got[0] != 1 || got[1] != 0 || got[2] != 0 || got[3] != 1 {
		c.Errorf("exist: %v", got)
	}
	// It is the beginning of a key that counts.
	if n, err := c.Engine.RemovePrefix(c.Context(), c.prefix[1:]); err != nil || n != 0 {
		c.Errorf("%d removed by what is no prefix, %v", n, err)
	}
	for _, short := range []string{"", "e", "eng"} {
		if _, err := c.Engine.RemovePrefix(c.Context(), short); err == nil {
			c.Errorf("removal by %q was not refused", short)
		}
	}
}

func removeMeta(c *check) {
	const meta = `.*+?()[]{}|^$\/-@:`
	objects := c.objects(2, 4096, 0)
	objects[0].Key, objects[1].Key = c.prefix+meta+"0", c.prefix+"xx"+meta
	c.fill(objects)
	c.put(objects)
	if n, err := c.Engine.RemovePrefix(c.Context(), c.prefix+meta); err != nil || n != 1 {
		c.Errorf("%d removed, %v; want 1", n, err)
	}
	if got := c.exist(objects[0].Key, objects[1].Key); got[0] != 0 || got[1] != 1 {
		c.Errorf("exist: %v", got)
	}
}

// refused checks that calls with those objects do nothing.
func (c *check) refused(objects []mooncake.Object) {
	c.Helper()
	if answers, err := c.Engine.Put(c.Context(), mooncake.Replication{}, objects); err == nil {
		c.Errorf("a put was not refused: %v", answers)
	}
	if answers, err := c.Engine.Get(c.Context(), objects); err == nil {
		c.Errorf("a get was not refused: %v", answers)
	}
}

func outside(c *check) {
	n := uint64(len(c.Memory))
	for _, r := range [][2]uint64{{n, 1}, {n - 100, 101}, {0, n + 1}, {1 << 63, 1 << 63}, {^uint64(0), 2}, {0, 0}} {
		objects := c.objects(2, 4096, 0)
		objects[1].Range = mooncake.Range{Offset: r[0], Bytes: r[1]}
		c.refused(objects)
	}
	c.want(c.exist(c.key(0), c.key(1)), nil, 2, 0)
}

func twice(c *check) {
	objects := c.objects(2, 4096, 0)
	objects[1].Key = objects[0].Key
	c.refused(objects)
}

func badKeys(c *check) {
	for _, key := range []string{"", "a\x00b", strings.Repeat("k", mooncake.MaxKeyBytes+1)} {
		objects := c.objects(1, 4096, 0)
		objects[0].Key = key
		c.refused(objects)
		if _, err := c.Engine.Exist(c.Context(), []string{key}); err == nil {
			c.Errorf("exist of %.20q was not refused", key)
		}
		if _, err := c.Engine.Remove(c.Context(), []string{key}); err == nil {
			c.Errorf("remove of %.20q was not refused", key)
		}
	}
}

func tooMuch(c *check) {
	c.refused(c.objects(mooncake.MaxTransfer+1, 64, 0))
	keys := make([]string, mooncake.MaxKeys+1)
	for i := range keys {
		keys[i] = c.key(i)
	}
	if _, err := c.Engine.Exist(c.Context(), keys); err == nil {
		c.Error("exist was not refused")
	}
	c.want(c.exist(keys[1:]...), nil, mooncake.MaxKeys, 0)
}

func nothing(c *check) {
	answers, err := c.Engine.Exist(c.Context(), nil)
	c.want(answers, err, 0, 0)
	answers, err = c.Engine.Get(c.Context(), nil)
	c.want(answers, err, 0, 0)
	answers, err = c.Engine.Put(c.Context(), mooncake.Replication{}, nil)
	c.want(answers, err, 0, 0)
}

func done(c *check) {
	ctx, cancel := context.WithCancel(c.Context())
	cancel()
	if _, err := c.Engine.Exist(ctx, []string{c.key(0)}); err == nil {
		c.Error("exist: no error")
	}
	if _, err := c.Engine.Get(ctx, c.objects(1, 64, 0)); err == nil {
		c.Error("get: no error")
	}
}

func atOnce(c *check) {
	var users sync.WaitGroup
	for u := range 8 {
		users.Go(func() {
			mine := &check{T: c.T, Rig: c.Rig, prefix: fmt.Sprintf("%suser-%d@", c.prefix, u)}
			for range 10 {
				objects := mine.objects(4, 4096, uint64(u)*65536)
				mine.fill(objects)
				answers, err := mine.Engine.Put(mine.Context(), mooncake.Replication{}, objects)
				if err != nil || len(answers) != 4 {
					mine.Errorf("put: %v, %v", answers, err)
					return
				}
				mine.clear(objects)
				answers, err = mine.Engine.Get(mine.Context(), objects)
				if err != nil || len(answers) != 4 || answers[3] != 4096 {
					mine.Errorf("get: %v, %v", answers, err)
					return
				}
				for i := range objects {
					if !bytes.Equal(mine.at(objects[i].Range), pattern(i, 4096)) {
						mine.Errorf("user %d: object %d has other bytes", u, i)
					}
				}
			}
		})
	}
	users.Wait()
}

func howKept(c *check) {
	objects := c.objects(3, 4096, 0)
	c.fill(objects)
	for i, how := range []mooncake.Replication{{SoftPin: true}, {HardPin: true}, {Replicas: 1, PreferredSegments: []string{"nobody:1"}}} {
		answers, err := c.Engine.Put(c.Context(), how, objects[i:i+1])
		c.want(answers, err, 1, 0)
	}
	answers, err := c.Engine.Remove(c.Context(), keysOf(objects))
	c.want(answers, err, 3, 0)
}

func oddKeys(c *check) {
	objects := c.objects(4, 4096, 0)
	objects[0].Key = c.prefix + "with blank\tand\nline"
	objects[1].Key = c.prefix + "Grüße/世界"
	objects[2].Key = c.prefix + `"quoted" \back`
	objects[3].Key = c.prefix + strings.Repeat("k", mooncake.MaxKeyBytes-len(c.prefix))
	c.fill(objects)
	c.put(objects)
	c.clear(objects)
	answers, err := c.Engine.Get(c.Context(), objects)
	c.want(answers, err, 4, 4096)
	c.same(objects)
	if got := c.exist(objects[0].Key[:len(objects[0].Key)-1]); got[0] != 0 {
		c.Error("a part of a key exists")
	}
}

func neighbours(c *check) {
	objects := c.objects(1, 1000, 100_001)
	c.fill(objects)
	c.put(objects)
	around := c.Memory[100_000:101_002]
	for i := range around {
		around[i] = 0xee
	}
	answers, err := c.Engine.Get(c.Context(), objects)
	c.want(answers, err, 1, 1000)
	c.same(objects)
	if around[0] != 0xee || around[1001] != 0xee {
		c.Error("a get wrote beside its range")
	}
}
