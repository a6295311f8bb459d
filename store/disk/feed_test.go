package disk_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/disk/disktest"
)

// reader goes by the feed.
type reader struct {
	t     *testing.T
	tier  *disk.Tier
	after uint64
	there map[disk.Key]int
}

// told is a chunk as the feed names it.
func told(k disk.Key) disk.Key {
	clear(k.Hash[16:24])
	return k
}

func (f *reader) apply(changes []disk.Change) {
	for i := range changes {
		c := &changes[i]
		key := disk.Key{Namespace: c.Namespace, Group: c.Group, Hash: c.Hash}
		if c.Stored {
			f.there[key]++
		} else if f.there[key]--; f.there[key] == 0 {
			delete(f.there, key)
		}
	}
}

func (f *reader) read() {
	f.t.Helper()
	changes, complete := f.tier.Changes(nil, f.after, 1<<20)
	if !complete {
		f.t.Fatal("changes are lost")
	}
	for i := range changes {
		if f.after++; changes[i].Seq != f.after {
			f.t.Fatalf("change %d is numbered %d", f.after, changes[i].Seq)
		}
	}
	f.apply(changes)
}

func (f *reader) walk() {
	clear(f.there)
	for from, more := uint32(0), true; more; {
		var chunks []disk.Change
		chunks, from, f.after = f.tier.Walk(nil, from)
		f.apply(chunks)
		more = from != 0
	}
}

// compare: it knows what the tier has, once each.
func (f *reader) compare(keys []disk.Key) {
	f.t.Helper()
	f.read()
	for _, key := range keys {
		_, is := f.tier.Look(&key)
		if n := f.there[told(key)]; n > 1 || (n == 1) != is {
			f.t.Fatalf("%+v: there %v, told %d times", key, is, n)
		}
	}
}

// Who goes by the feed knows what is there; a walk tells the same.
func TestFeed(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 0))
		const shard, chunks = 2 << 20, 40 // 24 of them fit
		dir := &disktest.Dir{}
		inner, err := disk.New(dir, testOptions())
		if err != nil {
			t.Fatal(err)
		}
		inner.WakeOnChange(make(chan struct{}, 1))
		r := &tier{Tier: inner, t: t, done: make(chan error, 1)}
		go func() { r.done <- inner.Run(t.Context()) }()
		synctest.Wait()
		var keys []disk.Key
		for i := range chunks {
			keys = append(keys, keyFor(i))
		}
		feed, walked := &reader{t: t, tier: r.Tier, there: map[disk.Key]int{}}, &reader{t: t, tier: r.Tier, there: map[disk.Key]int{}}
		for step := range chunks + 150 {
			i, what := rng.IntN(chunks), rng.IntN(20)
			if step < chunks {
				i, what = step, 20 // more than there is room for, nothing being removed
			}
			switch what {
			case 0:
				r.Reset(keys[0].Namespace)
				feed.read()
				clear(feed.there) // whoever resets tells so
			case 1:
				r.ForgetTag(nil, "tag1")
			case 2, 3, 4:
				r.Forget(keys[i])
			default:
				_ = r.put(i, 1, shard) // refused when it is there
			}
			synctest.Wait()
			feed.compare(keys)
			walked.walk()
			walked.compare(keys)
		}
		if s := r.Stats(); s.Evicted == 0 {
			t.Error("no region was filled again")
		}
	})
}
