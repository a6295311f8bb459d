package follow

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/mooncake-sidecar/sidecar/conductor/kvevents"
)

// blocks is a sink that keeps what is held.
type blocks map[string]bool

func (b blocks) Clear() { clear(b) }

func (b blocks) Apply(payload []byte) {
	for change := range strings.FieldsSeq(string(payload)) {
		if change[0] == '+' {
			b[change[1:]] = true
		} else {
			delete(b, change[1:])
		}
	}
}

// publisher is an engine and the way from it to the follower.
type publisher struct {
	held blocks
	next uint64
	life int
	// buffer has what can be asked for, its first number from; wire what is on its way.
	buffer []string
	from   uint64
	wire   []kvevents.Message
}

const buffered = 6 // messages

func (p *publisher) publish(payload string) {
	p.held.Apply([]byte(payload))
	p.buffer = append(p.buffer, payload)
	if len(p.buffer) > buffered {
		p.buffer, p.from = p.buffer[1:], p.from+1
	}
	p.wire = append(p.wire, kvevents.Message{Seq: p.next, Payload: []byte(payload)})
	p.next++
}

func (p *publisher) restart() {
	*p = publisher{held: blocks{}, life: p.life + 1, wire: p.wire}
}

// answer answers what is asked until nothing is.
func (p *publisher) answer(f *Follower, ask Ask) {
	for ask.Wanted {
		for i, payload := range p.buffer {
			if seq := p.from + uint64(i); seq >= ask.From {
				if again := f.Replayed(kvevents.Message{Seq: seq, Payload: []byte(payload)}); again.Wanted {
					ask = again
				}
			}
		}
		ask = f.Replayed(kvevents.Message{End: true})
	}
}

// Messages are lost, answers come late, publishers are started anew: once all has come
// in, nothing is held that the engine does not hold; and if all is known, all is.
func TestAgainstPublisher(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &publisher{held: blocks{}}
		got := blocks{}
		f := New(got)
		pending := Ask{}
		take := func(ask Ask) {
			if ask.Wanted {
				pending = ask
			}
		}
		change := func(t *rapid.T) string {
			return fmt.Sprintf("%s%d.%d", rapid.SampledFrom([]string{"+", "+", "-"}).Draw(t, "kind"), p.life, rapid.IntRange(0, 9).Draw(t, "block"))
		}
		answer := func() {
			ask := pending
			pending = Ask{}
			p.answer(f, ask)
		}
		for range rapid.IntRange(0, 9).Draw(t, "before it is followed") {
			p.publish(change(t))
		}
		p.wire = nil
		take(f.Start())
		deliver := func() {
			m := p.wire[0]
			p.wire = p.wire[1:]
			take(f.Live(m))
		}
		t.Repeat(map[string]func(*rapid.T){
			"publish": func(t *rapid.T) { p.publish(change(t)) },
			"more":    func(t *rapid.T) { p.publish(change(t) + " " + change(t)) },
			"deliver": func(t *rapid.T) {
				if len(p.wire) > 0 {
					deliver()
				}
			},
			"lose": func(t *rapid.T) {
				if len(p.wire) > 0 && p.wire[0].Seq > 0 { // else nobody could tell the new one from the old
					p.wire = p.wire[1:]
				}
			},
			"answer": func(t *rapid.T) { answer() },
			"no answer": func(t *rapid.T) {
				if pending.Wanted && rapid.IntRange(0, 3).Draw(t, "really") == 0 {
					if pending = f.Unanswered(); !pending.Wanted && pending.Later == 0 {
						t.Fatal("nothing asks again")
					}
				}
			},
			"retry": func(t *rapid.T) {
				if !pending.Wanted {
					pending = f.Retry()
				}
			},
			"restart": func(t *rapid.T) {
				if rapid.IntRange(0, 5).Draw(t, "really") > 0 {
					return
				}
				p.restart()
				if rapid.Bool().Draw(t, "is seen") {
					p.wire = nil
					if rapid.Bool().Draw(t, "is doubted") {
						take(f.Doubt())
					} else {
						take(f.Start())
					}
				}
			},
			"reconnect": func(t *rapid.T) {
				p.wire = nil
				take(f.Doubt())
			},
			"probe": func(t *rapid.T) {
				if !pending.Wanted {
					take(f.Probe())
				}
			},
			"resume": func(t *rapid.T) {
				if mark, ok := f.Mark(); ok {
					p.wire = nil
					f = New(got)
					pending = f.Resume(mark)
				}
			},
		})
		p.publish("+last")
		for len(p.wire) > 0 {
			deliver()
			answer()
		}
		answer()
		pending = f.Retry()
		answer()
		for block := range got {
			if !p.held[block] {
				t.Fatalf("%s is held no more; %+v", block, f.State())
			}
		}
		state := f.State()
		if !got["last"] || state.CatchingUp || !state.Known || state.Next != p.next {
			t.Fatalf("%+v, the publisher is at %d; %v", state, p.next, got)
		}
		if state.Since > p.from || state.Lost {
			t.Fatalf("%+v, and the publisher has all from %d on", state, p.from)
		}
		if state.Since == 0 && !maps.Equal(got, p.held) {
			t.Fatalf("%v are known, %v are held; %+v", got, p.held, state)
		}
	})
}

// message is a live one, or a replayed one.
func message(seq uint64, payload string) kvevents.Message {
	return kvevents.Message{Topic: "a topic", Seq: seq, Payload: []byte(payload)}
}

// end is a replay's.
func end() kvevents.Message { return kvevents.Message{End: true} }

// A publisher that was started anew, and got further than the other one unseen, is not
// taken for it.
func TestNumbersThatGoOn(t *testing.T) {
	for name, before := range map[string]string{"the same": "+b", "another": "+x"} {
		got := blocks{}
		f := New(got)
		f.Start()
		f.Replayed(end())
		f.Live(message(0, "+a"))
		f.Live(message(1, "+b"))
		ask := f.Live(message(4, "+e"))
		if ask != (Ask{Wanted: true, From: 1}) {
			t.Fatalf("%+v", ask)
		}
		f.Replayed(message(1, before))
		f.Replayed(message(2, "+c"))
		f.Replayed(message(3, "+d"))
		ask = f.Replayed(end())
		want := "a b c d e"
		if before == "+x" {
			if ask != (Ask{Wanted: true}) {
				t.Fatalf("%+v", ask)
			}
			for seq, payload := range []string{"+w", "+x", "+c", "+d"} {
				f.Replayed(message(uint64(seq), payload))
			}
			ask = f.Replayed(end())
			want = "c d e w x"
		}
		if held := strings.Join(slices.Sorted(maps.Keys(got)), " "); ask.Wanted || held != want || !f.State().Known || f.State().Since != 0 {
			t.Errorf("%s: %s, %+v", name, held, f.State())
		}
	}
}

// Where the message that was applied last is there no more, nothing says that the
// publisher is the same.
func TestWhatCannotBeChecked(t *testing.T) {
	got := blocks{}
	f := New(got)
	f.Start()
	f.Replayed(end())
	f.Live(message(0, "+a"))
	f.Live(message(2, "+c"))
	f.Replayed(message(1, "+b"))
	f.Replayed(end())
	if got["a"] || !got["b"] || !got["c"] || f.State().Since != 1 || f.Stats().Lost != 1 {
		t.Errorf("%v, %+v", got, f.State())
	}
}

// One answer that does not come is not the end of it: what was lost is had again.
func TestAnUnansweredReplayIsRetried(t *testing.T) {
	got := blocks{}
	f := New(got)
	f.Start()
	f.Live(message(2, "+c"))
	if ask := f.Unanswered(); ask != (Ask{Later: firstRetry}) || !got["c"] {
		t.Fatalf("%+v, %v", ask, got)
	}
	for range 20 {
		if ask := f.Retry(); ask != (Ask{Wanted: true}) {
			t.Fatalf("%+v", ask)
		}
		if ask := f.Unanswered(); ask.Later <= firstRetry || ask.Later > lastRetry || !got["c"] {
			t.Fatalf("%+v, %v", ask, got)
		}
	}
	f.Retry()
	f.Live(message(3, "-a"))
	for seq, payload := range []string{"+a", "+b", "+c", "-a"} {
		f.Replayed(message(uint64(seq), payload))
	}
	f.Replayed(end())
	if !maps.Equal(got, blocks{"b": true, "c": true}) || f.State() != (State{Known: true, Next: 4}) || f.Retry().Wanted {
		t.Errorf("%v, %+v", got, f.State())
	}
}

// What one gap has lost is asked for again though a later one is filled, as long as it is not
// known, by whoever goes on with the stream, too; it is sooner done for no gap.
func TestWhatAGapHasLostIsAskedForAgain(t *testing.T) {
	got := blocks{}
	f := New(got)
	f.Start()
	f.Replayed(end())
	f.Live(message(0, "+a"))
	f.Live(message(2, "+c"))
	if ask := f.Unanswered(); ask != (Ask{Later: firstRetry}) || got["a"] || !f.State().Lost {
		t.Fatalf("%+v, %v", ask, got)
	}
	was := Ask{Later: firstRetry}
	for range 3 {
		if ask := f.Retry(); ask != (Ask{Wanted: true}) {
			t.Fatalf("%+v", ask)
		}
		was = f.Unanswered()
	}
	for seq := uint64(4); seq <= 8; seq += 2 {
		if ask := f.Live(message(seq, "+e")); ask != (Ask{Wanted: true, From: seq - 2}) {
			t.Fatalf("%+v", ask)
		}
		f.Replayed(message(seq-2, map[bool]string{true: "+c", false: "+e"}[seq == 4]))
		f.Replayed(message(seq-1, "+d"))
		if ask := f.Replayed(end()); ask != was || f.State().Since != 2 || !f.State().Lost {
			t.Fatalf("%+v, want %+v; %+v", ask, was, f.State())
		}
	}
	mark, ok := f.Mark()
	if !ok || !mark.Lost {
		t.Fatalf("%+v", mark)
	}
	f = New(got)
	f.Resume(mark)
	f.Replayed(message(8, "+e"))
	if ask := f.Replayed(end()); ask.Later == 0 {
		t.Fatalf("%+v", ask)
	}
	if ask := f.Retry(); ask != (Ask{Wanted: true}) {
		t.Fatalf("%+v", ask)
	}
	for seq, payload := range []string{"+a", "+b", "+c", "+d", "+e", "+d", "+e", "+d", "+e"} {
		f.Replayed(message(uint64(seq), payload))
	}
	if ask := f.Replayed(end()); ask != (Ask{}) || len(got) != 5 || f.State() != (State{Known: true, Next: 9}) || f.Retry().Wanted {
		t.Errorf("%+v, %v, %+v", ask, got, f.State())
	}
}

// An answer to the question for all that goes back no further than what is known costs
// nothing of it.
func TestAnAnswerThatGoesBackNoFurther(t *testing.T) {
	got := blocks{}
	f := New(got)
	f.Start()
	f.Live(message(2, "+c"))
	f.Unanswered()
	f.Live(message(3, "+d"))
	f.Retry()
	f.Replayed(message(3, "+d"))
	f.Replayed(message(4, "+e"))
	if ask := f.Replayed(end()); ask != (Ask{}) || !maps.Equal(got, blocks{"c": true, "d": true, "e": true}) || f.State() != (State{Known: true, Since: 2, Next: 5}) {
		t.Errorf("%+v, %v, %+v", ask, got, f.State())
	}
}

// What was lost is of no use where everything was taken back since.
func TestNothingIsLostBehindAClear(t *testing.T) {
	var f *Follower
	f = New(clearing{blocks{}, func() { f.Cleared() }})
	f.Start()
	f.Live(message(2, "+c"))
	f.Unanswered()
	if !f.State().Lost {
		t.Fatalf("%+v", f.State())
	}
	f.Live(message(3, "clear"))
	if f.State().Lost || f.Retry() != (Ask{Wanted: true, From: 3}) {
		t.Errorf("%+v", f.State())
	}
}

// clearing is a sink that finds out when everything is taken back.
type clearing struct {
	blocks
	cleared func()
}

func (c clearing) Apply(payload []byte) {
	if string(payload) == "clear" {
		c.cleared()
		return
	}
	c.blocks.Apply(payload)
}

// What waits has no more than what is counted.
func TestWhatWaitsIsCounted(t *testing.T) {
	f := New(blocks{})
	f.Start()
	m := message(3, "+a")
	m.Topic = strings.Repeat("t", 1<<20)
	f.Live(m)
	if len(f.held) != 1 || f.held[0].Topic != "" || f.heldBytes != 2 {
		t.Errorf("%d bytes of %d are counted", f.heldBytes, len(f.held[0].Topic)+len(f.held[0].Payload))
	}
}

// Whoever was away, or begins where another one has stopped, goes on if the publisher is
// still the same, and forgets if it is not, or does not answer.
func TestDoubt(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer []kvevents.Message
		want   string
		since  uint64
	}{
		{"nothing has happened", []kvevents.Message{message(1, "+b"), end()}, "a b", 0},
		{"more was told", []kvevents.Message{message(1, "+b"), message(2, "-a"), end()}, "b", 0},
		{"another one, as far", []kvevents.Message{message(1, "+x"), end(), message(0, "+w"), message(1, "+x"), end()}, "w x", 0},
		{"another one, not so far", []kvevents.Message{end(), message(0, "+w"), end()}, "w", 0},
		{"what was told last is no longer kept", []kvevents.Message{message(7, "+h"), end()}, "h", 7},
		{"nobody answers", nil, "", 0},
	} {
		got := blocks{"a": true, "b": true}
		f := New(got)
		last := New(blocks{})
		last.Start()
		last.Replayed(message(0, "+a"))
		last.Replayed(message(1, "+b"))
		last.Replayed(end())
		mark, ok := last.Mark()
		if ask := f.Resume(mark); !ok || ask != (Ask{Wanted: true, From: 1}) || !f.State().CatchingUp || !got["a"] {
			t.Fatalf("%s: %+v, %v", c.name, ask, got)
		}
		if _, ok := f.Mark(); ok {
			t.Errorf("%s: what is doubted was given away", c.name)
		}
		for _, m := range c.answer {
			f.Replayed(m)
		}
		if c.answer == nil {
			f.Unanswered()
		}
		if held := strings.Join(slices.Sorted(maps.Keys(got)), " "); held != c.want || f.State().Since != c.since || f.State().CatchingUp {
			t.Errorf("%s: %q, %+v", c.name, held, f.State())
		}
	}
}

// A probe brings what was lost last, and takes nothing for missing until then.
func TestProbe(t *testing.T) {
	got := blocks{}
	f := New(got)
	f.Start()
	f.Replayed(end())
	f.Live(message(0, "+a"))
	if ask := f.Probe(); ask != (Ask{Wanted: true, From: 0}) || f.State().CatchingUp || f.Probe().Wanted {
		t.Fatalf("%+v, %+v", ask, f.State())
	}
	f.Replayed(message(0, "+a"))
	f.Replayed(message(1, "+b"))
	f.Replayed(end())
	if !got["a"] || !got["b"] || f.State() != (State{Known: true, Next: 2}) {
		t.Fatalf("%v, %+v", got, f.State())
	}
	f.Probe()
	if ask := f.Unanswered(); ask.Later == 0 || !got["a"] {
		t.Errorf("%+v, %v: what nobody answers for now was forgotten", ask, got)
	}
}

// Of a long replay the latest is remembered: what comes live behind it.
func TestWhatIsRememberedIsBounded(t *testing.T) {
	f := New(blocks{})
	f.Start()
	const replayed = 5 * maxHeld
	for seq := range uint64(replayed) {
		f.Replayed(message(seq, "+a"))
	}
	f.Replayed(end())
	if len(f.ahead) > 2*maxHeld {
		t.Errorf("%d are remembered", len(f.ahead))
	}
	for seq := uint64(replayed - maxHeld); seq < replayed; seq++ {
		f.Live(message(seq, "+a"))
	}
	if s := f.Stats(); s.Restarts != 0 || s.Again != maxHeld {
		t.Errorf("%+v", s)
	}
}
