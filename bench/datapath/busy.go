package datapath

import (
	"sync"
	"time"
)

const (
	busyBytes = 8 << 20 // a thread's working set: larger than its caches
	busyTurns = 40      // over it
)

// compute is an engine's step: each thread goes over its memory.
func compute(threads [][]uint64) time.Duration {
	begun := time.Now()
	var all sync.WaitGroup
	for _, words := range threads {
		all.Go(func() {
			for range busyTurns {
				for i := range words {
					words[i] = words[i]*6364136223846793005 + 1442695040888963407
				}
			}
		})
	}
	all.Wait()
	return time.Since(begun)
}

// runBusy measures a step alone, and beside the store of a prompt.
func runBusy(o *Options, b Build, e *engine, prompt int) ([]Sample, error) {
	threads := make([][]uint64, o.Busy)
	for i := range threads {
		threads[i] = make([]uint64, busyBytes/8)
	}
	compute(threads) // touches it
	var samples []Sample
	add := func(kind string, took time.Duration) {
		samples = append(samples, Sample{Build: b.Name, Size: e.g.String(), Kind: kind, Wall: micros(took)})
	}
	for i := range 1 + o.Warm {
		add("alone", compute(threads))
		stored := make(chan error, 1)
		var wait time.Duration
		go func() {
			took, _, err := e.store(prompt + 1 + i)
			wait = took
			stored <- err
		}()
		add("beside", compute(threads))
		if err := <-stored; err != nil {
			return nil, err
		}
		add("its store", wait)
	}
	return samples, nil
}
