//go:build cgo && linux && (amd64 || arm64)

package mooncakec_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/mooncakec"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// hasty makes calls late soon; those that do not hang are not, on a busy machine either.
func hasty(c *mooncakec.Config) {
	c.Limits.Question, c.Limits.Transfer = time.Second, time.Second
}

type outcome struct {
	answers []mooncake.Answer
	err     error
}

// TestHang: with a call that hangs the engine is down until that returns, and then
// serves on with the same client. A question's caller is answered meanwhile; a
// transfer's is not, for the ranges are not theirs yet.
func TestHang(t *testing.T) {
	library := double(t)
	for name, c := range map[string]struct {
		call     func(*rig) ([]mooncake.Answer, error)
		transfer bool
		want     mooncake.Answer
	}{
		"exist":  {func(r *rig) ([]mooncake.Answer, error) { return r.Exist(context.Background(), []string{"x@hang"}) }, false, 0},
		"remove": {func(r *rig) ([]mooncake.Answer, error) { return r.Remove(context.Background(), []string{"x@hang"}) }, false, 0},
		"remove by prefix": {func(r *rig) ([]mooncake.Answer, error) {
			n, err := r.RemovePrefix(context.Background(), "x@hang")
			return []mooncake.Answer{mooncake.Answer(n)}, err
		}, false, 0},
		"put": {func(r *rig) ([]mooncake.Answer, error) {
			return r.Put(context.Background(), mooncake.Replication{}, object("x@hang", 0, 64))
		}, true, 0},
		"get": {func(r *rig) ([]mooncake.Answer, error) {
			return r.Get(context.Background(), object("here@hang", 64, 64))
		}, true, 64},
	} {
		t.Run(name, func(t *testing.T) {
			stop := newFlag(t)
			r := start(t, library, "stop="+stop.path, hasty)
			r.ready()
			if _, err := r.Put(t.Context(), mooncake.Replication{}, object("here@hang", 0, 64)); err != nil {
				t.Fatal(err)
			}
			stop.raise()
			result := make(chan outcome, 1)
			go func() {
				answers, err := c.call(r)
				result <- outcome{answers, err}
			}()
			op, _, _ := strings.Cut(name, " ")
			r.says("has not returned from " + op)
			if _, err := r.Exist(t.Context(), []string{"other"}); !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "has not returned from "+op) {
				t.Errorf("another call says %v", err)
			}
			if c.transfer {
				select {
				case o := <-result:
					t.Errorf("the transfer ended with %v, %v while the library may touch its range", o.answers, o.err)
				default:
				}
			} else if o := <-result; !errors.Is(o.err, store.ErrUnavailable) {
				t.Errorf("%v, %v, want ErrUnavailable", o.answers, o.err)
			}
			stop.lower()
			if health := r.ready(); health.Starts != 1 {
				t.Errorf("%+v", health)
			}
			if c.transfer {
				if o := <-result; o.err != nil || o.answers[0] != c.want {
					t.Errorf("%v, %v, want %d", o.answers, o.err, c.want)
				}
			}
			if _, err := r.Exist(t.Context(), []string{"other"}); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestHold: who can keep ranges out of use is answered, and told when the library
// has returned.
func TestHold(t *testing.T) {
	for _, how := range []string{"returns", "is given up"} {
		t.Run("and "+how, func(t *testing.T) {
			stop := newFlag(t)
			held, released := make(chan []mooncake.Range, 1), make(chan struct{})
			var down atomic.Bool
			r := start(t, double(t), "stop="+stop.path, func(c *mooncakec.Config) {
				hasty(c)
				c.Limits.Failure = 1
				c.Hold = func(ranges []mooncake.Range) func() {
					held <- ranges
					return func() {
						if down.Load() {
							t.Error("released before the library returned")
						}
						close(released)
					}
				}
			})
			r.ready()
			stop.raise()
			down.Store(true)
			key := "x@hang"
			if how == "is given up" {
				key += "@goeson"
			}
			answers, err := r.Get(t.Context(), append(object(key, 128, 64), object("y", 4096, 100)...))
			if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "has not returned from get") {
				t.Errorf("%v, %v", answers, err)
			}
			if got := <-held; len(got) != 2 || got[0] != (mooncake.Range{Offset: 128, Bytes: 64}) || got[1] != (mooncake.Range{Offset: 4096, Bytes: 100}) {
				t.Errorf("held: %v", got)
			}
			down.Store(false)
			stop.lower()
			<-released
			r.ready()
			if how == "is given up" {
				r.still(r.memory[128:192])
				if n := r.counts("destroys"); n != 1 {
					t.Errorf("%d clients were destroyed, want the one whose transfer goes on", n)
				}
			}
		})
	}
}

// still checks that nobody writes to memory: what is written there stays.
func (r *rig) still(memory []byte) {
	r.t.Helper()
	mark := bytes.Repeat([]byte("mine"), len(memory)/4)
	copy(memory, mark)
	for range 20 {
		time.Sleep(time.Millisecond) // the double writes every millisecond
		if !bytes.Equal(memory, mark) {
			r.t.Fatal("memory that was given back is written to")
		}
	}
}

// TestGivenUp: a transfer that failed late may go on. It is answered when its client
// is gone; the next one serves.
func TestGivenUp(t *testing.T) {
	r := start(t, double(t), "", func(c *mooncakec.Config) { c.Limits.Failure = 1 })
	r.ready()
	answers, err := r.Get(t.Context(), object("x@goeson", 0, 64))
	if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "TRANSFER_FAIL (-800)") {
		t.Errorf("%v, %v", answers, err)
	}
	r.still(r.memory[:64])
	r.await("replaced", func(h mooncake.Health) bool { return h.Ready && h.Starts == 2 })
	if n := r.counts("destroys"); n != 1 {
		t.Errorf("%d clients were destroyed", n)
	}
	// One that failed at once has ended.
	r = start(t, double(t), "", nil)
	r.ready()
	if answers, err := r.Get(t.Context(), object("x@code-800", 0, 64)); err != nil || answers[0].Code() != mooncake.CodeTransferFailed {
		t.Errorf("%v, %v", answers, err)
	}
	if health := r.Health(); health.Starts != 1 || !health.Ready {
		t.Errorf("%+v", health)
	}
}

// TestEnd: Run ends though the library does not return, and says so; who waits is
// answered.
func TestEnd(t *testing.T) {
	library := double(t)
	for name, hang := range map[string]func(*rig, flag) chan outcome{
		"a get": func(r *rig, stop flag) chan outcome {
			r.ready()
			stop.raise()
			result := make(chan outcome, 1)
			go func() {
				answers, err := r.Get(context.Background(), object("x@hang", 0, 64))
				result <- outcome{answers, err}
			}()
			r.says("get")
			return result
		},
		"the end of the client": func(r *rig, stop flag) chan outcome {
			r.ready()
			stop.raise()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			stop := newFlag(t)
			r := start(t, library, "stop="+stop.path, func(c *mooncakec.Config) {
				hasty(c)
				c.Limits.Close = time.Millisecond
			})
			result := hang(r, stop)
			r.end()
			if err := <-r.ended; !errors.Is(err, mooncakec.ErrLeft) {
				t.Errorf("Run ended with %v", err)
			}
			r.ended <- nil
			if result != nil {
				if o := <-result; !errors.Is(o.err, mooncakec.ErrLeft) || !errors.Is(o.err, store.ErrUnavailable) {
					t.Errorf("%v, %v", o.answers, o.err)
				}
			}
			if _, err := r.Exist(t.Context(), []string{"x"}); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("after the end: %v", err)
			}
			stop.lower()
		})
	}
	t.Run("the setup", func(t *testing.T) {
		stop := newFlag(t)
		stop.raise()
		r := start(t, library, "stop="+stop.path, func(c *mooncakec.Config) { c.Limits.Start, c.Limits.Close = 1, 1 })
		r.says("has not returned from setup")
		r.end()
		if err := <-r.ended; !errors.Is(err, mooncakec.ErrLeft) || !strings.Contains(err.Error(), "setup") {
			t.Errorf("Run ended with %v", err)
		}
		r.ended <- nil
		stop.lower()
	})
	t.Run("a slow setup", func(t *testing.T) {
		stop := newFlag(t)
		stop.raise()
		r := start(t, library, "stop="+stop.path, func(c *mooncakec.Config) { c.Limits.Start = 1 })
		r.says("has not returned from setup")
		stop.lower()
		r.ready()
	})
	t.Run("nothing", func(t *testing.T) {
		r := start(t, library, "", nil)
		r.ready()
		r.end()
		if err := <-r.ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
		r.ended <- nil
	})
}
