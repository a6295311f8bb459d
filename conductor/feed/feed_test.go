package feed

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/follow"
	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// What was told before the service was registered is known at once; what is lost is asked
// for when the next message shows it.
func TestHistoryAndGap(t *testing.T) {
	for _, noTopic := range []bool{false, true} {
		test(t, func(t *testing.T) {
			p := newPublisher()
			p.noTopic = noTopic
			p.tell(t, false, stored(1, 2, 3))
			f := follows(t, p, nil)
			defer f.stop()
			f.expect(6, contract.Complete, 1, 2, 3)
			p.tell(t, true, removed(3))
			f.expect(6, contract.Complete, 1, 2, 3) // nobody can know
			p.tell(t, false, stored(7))
			f.expect(4, contract.Complete, 1, 2, 3)
			if s := f.Status(); s.Gaps != 1 || s.Next != 3 || s.Batches != 3 || !slices.Equal(p.asked(), []uint64{0, 0}) {
				t.Errorf("%+v, asked %v", s, p.asked())
			}
		})
	}
}

// A publisher that has told nothing is known whole; one that nobody has heard is not.
func TestNothingToTell(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		f := follows(t, p, nil)
		defer f.stop()
		f.expect(0, contract.Complete, 1)
		p.tell(t, false, stored(1))
		f.expect(2, contract.Complete, 1)
		if len(p.asked()) != 1 {
			t.Errorf("asked %v", p.asked())
		}
	})
	test(t, func(t *testing.T) {
		p := newPublisher()
		p.absent = true
		f := follows(t, p, nil)
		defer f.stop()
		wait(time.Minute)
		f.expect(0, contract.Connecting, 1)
		if s := f.Status(); !strings.Contains(s.Reason, "no connection") {
			t.Error(s.Reason)
		}
		p.tell(t, true, stored(1))
		p.connect()
		f.expect(2, contract.Complete, 1)
	})
}

// Numbers that go back are another publisher's: nothing of the first one's counts.
func TestRestart(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		f := follows(t, p, nil)
		defer f.stop()
		p.tell(t, false, stored(1, 2))
		p.tell(t, false, stored(7))
		p.restart()
		p.tell(t, true, stored(4))
		p.tell(t, false, stored(5))
		f.expect(0, contract.Complete, 1, 2)
		f.expect(2, contract.Complete, 4)
		f.expect(2, contract.Complete, 5)
		if s := f.Status(); s.Restarts != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// What nobody has any more is not claimed, and what is missing is said.
func TestReplayEvicted(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		for i := range uint32(5) {
			p.tell(t, true, stored(i))
		}
		p.evict(2)
		f := follows(t, p, nil)
		defer f.stop()
		f.expect(0, contract.Incomplete, 1)
		f.expect(2, contract.Incomplete, 4)
		if s := f.Status(); s.Since != 3 || f.Summary() != (Summary{contract.Incomplete, 3, blockTokens}) {
			t.Errorf("%+v", s)
		}
		// An engine that has cleared all holds nothing that is not known.
		p.tell(t, false, &kvevents.AllBlocksCleared{}, stored(9))
		f.expect(0, contract.Complete, 4)
		f.expect(2, contract.Complete, 9)
	})
}

// A replay that nobody answers leaves what is known for certain, and is asked for until
// somebody does.
func TestReplayRefused(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		p.tell(t, true, stored(1))
		p.refuse(true)
		f := follows(t, p, nil)
		defer f.stop()
		p.tell(t, false, stored(2))
		wait(10 * time.Second)
		f.expect(2, contract.Incomplete, 2)
		if s := f.Status(); s.Since != 1 || !strings.Contains(s.Reason, "nobody answers at tcp://e:2") {
			t.Errorf("%+v", s)
		}
		wait(time.Hour)
		if n := len(p.asked()); n < 10 || n > 40 {
			t.Errorf("asked %d times in an hour", n)
		}
		p.refuse(false)
		wait(10 * time.Minute)
		f.expect(2, contract.Complete, 1)
		f.expect(2, contract.Complete, 2)
	})
}

// Without a replay endpoint a stream is what was heard, from its beginning or not.
func TestNoReplayEndpoint(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		f := follows(t, p, func(c *Config) { c.Service.ReplayEndpoint = "" })
		defer f.stop()
		f.expect(0, contract.Connecting)
		p.tell(t, false, stored(1, 2))
		f.expect(4, contract.Complete, 1, 2)
		p.tell(t, true, removed(2))
		p.tell(t, false, stored(3))
		f.expect(0, contract.Incomplete, 1, 2)
		f.expect(2, contract.Incomplete, 3)
		p.disconnect()
		f.expect(2, contract.Silent, 3)
		p.connect()
		f.expect(0, contract.Incomplete, 3) // it may be another one
		if s := f.Status(); !strings.Contains(s.Reason, "replay_endpoint") || len(p.asked()) != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A connection that was lost leaves what is known, marked, until it is there again. Then one
// question tells whether the publisher is the same.
func TestConnectionLost(t *testing.T) {
	for name, same := range map[string]bool{"the same": true, "another": false} {
		t.Run(name, func(t *testing.T) {
			test(t, func(t *testing.T) {
				p := newPublisher()
				f := follows(t, p, nil)
				defer f.stop()
				for i := range uint32(6) {
					p.tell(t, false, stored(i))
				}
				f.expect(2, contract.Complete, 1)
				p.disconnect()
				f.expect(2, contract.Silent, 1)
				wait(time.Hour)
				f.expect(2, contract.Silent, 1)
				if !same {
					p.restart()
					for i := range uint32(6) {
						p.tell(t, true, stored(10+i))
					}
				}
				p.tell(t, true, stored(20))
				before := len(p.asked())
				p.connect()
				f.expect(2, contract.Complete, 20)
				if same {
					f.expect(2, contract.Complete, 1)
				} else {
					f.expect(0, contract.Complete, 1)
					f.expect(2, contract.Complete, 11)
				}
				want := []uint64{5}
				if !same {
					want = append(want, 0)
				}
				if asked := p.asked()[before:]; !slices.Equal(asked, want) {
					t.Errorf("asked %v", asked)
				}
			})
		})
	}
}

// While nothing comes the publisher is asked whether it is there: what was lost last is
// found, and one that does not answer is silent.
func TestIdle(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		f := follows(t, p, nil)
		defer f.stop()
		p.tell(t, false, stored(1, 2))
		p.tell(t, true, removed(2))
		wait(time.Minute)
		f.expect(2, contract.Complete, 1, 2)
		p.refuse(true)
		wait(time.Minute)
		f.expect(2, contract.Silent, 1, 2)
		p.tell(t, false, stored(5))
		f.expect(2, contract.Complete, 5) // it goes on where it was
		p.refuse(false)
		wait(10 * time.Minute)
		f.expect(2, contract.Complete, 5)
	})
}

// A feed that is too slow drops what is oldest, and gets it again.
func TestTooSlow(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		f := follows(t, p, nil)
		defer f.stop()
		p.tell(t, false, stored(1, 2))
		f.expect(4, contract.Complete, 1, 2)
		f.gate.Lock()
		p.tell(t, false, removed(2))
		p.tell(t, false, stored(9))
		for range 2 * maxWaiting { // the feed may have taken as many as wait
			p.tellBytes(false, p.buffer[2])
		}
		f.gate.Unlock()
		f.expect(2, contract.Complete, 1, 2)
		if s := f.Status(); s.Gaps == 0 || s.Next != 2*maxWaiting+3 || !slices.ContainsFunc(append(s.Warnings, s.Reason), func(w string) bool { return strings.Contains(w, "dropped") }) {
			t.Errorf("%+v", s)
		}
	})
}

// What can't be read costs what may have been taken back with it, and is said.
func TestUnreadable(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		f := follows(t, p, nil)
		defer f.stop()
		p.tell(t, false, stored(1))
		p.send([]byte("two"), []byte("frames"))
		f.expect(2, contract.Complete, 1)
		p.tellBytes(false, []byte("\xc1"))
		f.expect(0, contract.Incomplete, 1)
		p.tell(t, false, stored(2))
		f.expect(2, contract.Incomplete, 2)
		if s := f.Status(); s.Since != 2 || s.Rejected != 2 || !strings.Contains(s.Reason, "can't be read") {
			t.Errorf("%+v", s)
		}
		p.tellBytes(false, []byte("\x93\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\x91\x81\xa4type\xabBlockStored\xc0")) // without hashes
		f.expect(2, contract.Incomplete, 2)
		p.tell(t, false, &kvevents.AllBlocksCleared{})
		f.expect(0, contract.Complete, 2)
	})
}

// Two publishers at one endpoint would have each other's streams replayed for ever.
func TestNumbersBackAndForth(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		f := follows(t, p, nil)
		defer f.stop()
		for range 600 {
			p.restart()
			p.tell(t, false, stored(1))
			wait(100 * time.Millisecond)
		}
		if n := len(p.asked()); n < mostAsks || n > mostAsks+32 {
			t.Errorf("asked %d times in a minute", n)
		}
		p.restart()
		p.tell(t, false, stored(1))
		f.expect(0, contract.Incomplete)
		if s := f.Status(); !strings.Contains(s.Reason, "several publish") || s.State != contract.Incomplete {
			t.Errorf("%+v", s)
		}
	})
}

func TestTopics(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		p.topic = "kv@a@m"
		f := follows(t, p, nil)
		defer f.stop()
		p.tell(t, false, stored(1))
		p.send([]byte("kv@a@m2"), []byte("12345678"), nil)
		f.expect(2, contract.Complete, 1)
		if s := f.Status(); !strings.Contains(s.Reason, "kv@a@m2") {
			t.Errorf("%+v", s)
		}
	})
	test(t, func(t *testing.T) { // a store is asked for its one topic
		p := newPublisher()
		p.topic = "kv@a@m"
		f := follows(t, p, func(c *Config) {
			c.Service.Topic, c.Service.Type = "kv@a@m", contract.TypeMooncake
		})
		defer f.stop()
		if r := p.requests[0]; len(r) != 3 || string(r[2]) != "kv@a@m" {
			t.Errorf("%q", r)
		}
		p.send([]byte("kv@a@m2"), []byte("12345678"), nil) // subscriptions are prefixes
		f.expect(0, contract.Complete)
	})
}

// What the publisher says of itself is compared with what it was registered as.
func TestFaults(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		f := follows(t, p, func(c *Config) {
			c.Service.BlockTokens = 16
			c.Service.Hash = contract.HashProfile{Algorithm: "sha256"}
		})
		defer f.stop()
		rank := 1
		p.tellBatch(t, false, &kvevents.Batch{Events: []kvevents.Event{stored(1)}, Rank: &rank})
		f.expect(2, contract.Complete, 1)
		s := f.Status()
		for i, want := range []string{"2 tokens, and block_size is 16", "rank 1, and dp_rank is 0", "not those of sha256, seed unset"} {
			if all := append([]string{s.Reason}, s.Warnings...); len(all) != 3 || !strings.Contains(all[i], want) {
				t.Errorf("%q", all)
			}
		}
	})
}

// A store tells all that it has behind each AllBlocksCleared, and ends that with an empty
// batch. Its numbers do not begin at 0.
func TestStoreAnnounces(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		p.next, p.from = 1<<50, 1<<50
		f := follows(t, p, func(c *Config) { c.Service.Type = contract.TypeMooncake })
		defer f.stop()
		in := func(n uint32) *kvevents.BlockStored { e := stored(n); e.Medium = kvevents.MediumCPU; return e }
		p.tell(t, false, &kvevents.AllBlocksCleared{}, in(1))
		f.expect(2, contract.Incomplete, 1)
		p.tell(t, false, in(2))
		p.tell(t, false)
		f.expect(2, contract.Complete, 2)
	})
}

// A feed goes on where another one has stopped, if the publisher is the same.
func TestResume(t *testing.T) {
	for name, same := range map[string]bool{"the same": true, "another": false} {
		t.Run(name, func(t *testing.T) {
			test(t, func(t *testing.T) {
				p := newPublisher()
				first := follows(t, p, nil)
				p.tell(t, false, stored(1))
				p.tell(t, false, stored(2))
				first.expect(2, contract.Complete, 1)
				first.gate.Lock()
				mark, ok := first.Mark()
				first.gate.Unlock()
				if want := (follow.Mark{Next: 2, Last: mark.Last}); !ok || mark.Mark != want || !mark.Whole {
					t.Fatalf("%+v", mark)
				}
				first.stop()
				if !same {
					p.restart()
				}
				p.tell(t, true, stored(3))
				before := len(p.asked())
				second := follows(t, p, func(c *Config) { c.Source, c.Resume = first.cfg.Source, &mark })
				second.index = first.index
				defer second.stop()
				second.expect(2, contract.Complete, 3)
				if same {
					second.expect(2, contract.Complete, 1)
				} else {
					second.expect(0, contract.Complete, 1)
				}
				if asked := p.asked()[before:]; asked[0] != 1 || same && len(asked) != 1 {
					t.Errorf("asked %v", asked)
				}
			})
		})
	}
	test(t, func(t *testing.T) { // nobody can be asked
		p := newPublisher()
		index := prefixindex.New(prefixindex.Options{})
		source := index.Open(prefixindex.Origin{Model: "m", Instance: "e"})
		source.Apply(&kvevents.Batch{Events: []kvevents.Event{stored(1)}})
		f := follows(t, p, func(c *Config) {
			c.Source, c.Resume, c.Service.ReplayEndpoint = source, &Mark{}, ""
		})
		f.index = index
		defer f.stop()
		f.expect(0, contract.Connecting, 1)
	})
}

// What a gap has lost that nobody answered for is had when the publisher answers again, though
// a later gap was filled in between; until then the stream says that it is not complete.
func TestALaterGapDoesNotEndTheQuestion(t *testing.T) {
	test(t, func(t *testing.T) {
		p := newPublisher()
		f := follows(t, p, nil)
		defer f.stop()
		p.tell(t, false, stored(1))
		synctest.Wait()
		p.refuse(true)
		p.tell(t, true, stored(2))
		p.tell(t, false, stored(3))
		wait(f.cfg.Times.Answer)
		f.expect(0, contract.Silent, 1)
		p.refuse(false)
		p.tell(t, true, stored(4))
		p.tell(t, false, stored(5))
		f.expect(2, contract.Incomplete, 4) // the later gap is filled
		if s := f.Status(); s.Since != 2 || !strings.Contains(s.Reason, "is asked for again") {
			t.Errorf("%+v", s)
		}
		wait(time.Minute)
		for block := uint32(1); block <= 5; block++ {
			f.expect(2, contract.Complete, block)
		}
		if s := f.Status(); s.Reason != "" {
			t.Errorf("%+v", s)
		}
	})
}
