package lookup

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/internal/wire"
	"github.com/mooncake-sidecar/sidecar/internal/zmqx"
)

// answerPatience bounds one lookup.
const answerPatience = 10 * time.Second

// asker is a client of one socket.
type asker struct {
	client *zmqx.Client
	frames [][]byte
	want   int
}

func newAsker(transport *zmqx.Transport, path string, q *question) (*asker, error) {
	client, err := transport.Dial(path)
	if err != nil {
		return nil, err
	}
	return &asker{client: client, frames: wire.EncodeLookup(q.Tokens, hashBytes, q.blob), want: q.Want}, nil
}

// ask asks once and returns how long it took.
func (a *asker) ask() (time.Duration, error) {
	began := time.Now()
	reply, err := a.client.Request(answerPatience, a.frames...)
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	hit, _, err := wire.ParseHit(reply[0])
	if err != nil {
		return 0, err
	}
	if hit != a.want {
		return 0, fmt.Errorf("answer of %d tokens, want %d", hit, a.want)
	}
	return took, nil
}

// times asks over and over.
func times(ask func() (time.Duration, error), warm, rounds int) ([]int64, error) {
	taken := make([]int64, 0, rounds)
	for i := range warm + rounds {
		took, err := ask()
		if err != nil {
			return nil, err
		}
		if i >= warm {
			taken = append(taken, took.Nanoseconds())
		}
	}
	return taken, nil
}

// crowd asks with many clients at once, each as soon as it has its answer.
func crowd(transport *zmqx.Transport, path string, q *question, clients, rounds int) ([]int64, error) {
	var (
		asking sync.WaitGroup
		mu     sync.Mutex
		all    []int64
		faults []error
	)
	askers := make([]*asker, 0, clients)
	defer func() {
		for _, a := range askers {
			_ = a.client.Close() // nothing is under way
		}
	}()
	for range clients {
		a, err := newAsker(transport, path, q)
		if err != nil {
			return nil, err
		}
		askers = append(askers, a)
	}
	for _, a := range askers {
		asking.Go(func() {
			taken, err := times(a.ask, 2, rounds)
			mu.Lock()
			defer mu.Unlock()
			all, faults = append(all, taken...), append(faults, err)
		})
	}
	asking.Wait()
	return all, errors.Join(faults...)
}
