package datapath

import (
	"fmt"
	"slices"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
)

// mostBeside bounds the loads beside one lot of stores: the words of the stores
// under way must stay on the board.
const mostBeside = jobSlots / 2

// aloneLoads are measured before each lot of stores.
const aloneLoads = 10

// runQueued measures a load alone, and loads one after the other while stores of so
// many bytes wait or run; and how long these take.
func runQueued(o *Options, b Build, e *engine, round int) ([]Sample, error) {
	prompt := round * 1000
	if _, _, err := e.store(prompt); err != nil {
		return nil, err
	}
	if _, _, err := e.load(prompt); err != nil { // enters its blocks
		return nil, err
	}
	var samples []Sample
	add := func(kind string, took time.Duration, r *connector.Result) {
		s := Sample{Build: b.Name, Size: e.g.String(), Kind: kind, Round: round, Wall: micros(took)}
		if r != nil {
			s.Ask, s.Move, s.Daemon = float64(r.AskMicros), float64(r.MoveMicros), float64(r.Micros)
		}
		samples = append(samples, s)
	}
	jobs := min(max(o.Queued/e.g.bytes(), 1), jobSlots/2)
	for lot := range o.Warm {
		for range aloneLoads {
			took, r, err := e.load(prompt)
			if err != nil {
				return nil, err
			}
			add("alone", took, r)
		}
		begun := time.Now()
		waiting := map[uint64]bool{}
		for i := range jobs {
			job := e.storeJob(prompt + 1 + lot*jobs + i)
			if err := e.send(job); err != nil {
				return nil, err
			}
			waiting[job.Job] = true
		}
		for n := 0; len(waiting) > 0; n++ {
			load := uint64(0)
			from := time.Now()
			if n < mostBeside {
				job := e.loadJob(prompt)
				load = job.Job
				if err := e.send(job); err != nil {
					return nil, err
				}
			}
			for ended := false; !ended; {
				r, err := receive[*connector.Result](e)
				if err != nil {
					return nil, err
				}
				if r.Status != connector.StatusOK {
					return nil, fmt.Errorf("%s: %s %q", r.Kind, r.Status, r.Reason)
				}
				if delete(waiting, r.Job); r.Job == load {
					add("queued", time.Since(from), r)
				}
				ended = r.Job == load || load == 0
			}
		}
		add("stores", time.Since(begun), nil)
	}
	return samples, nil
}

// printQueued prints how much longer a load takes while stores are queued: the
// median over rounds of the rounds' medians' ratio, and its extremes.
func printQueued(o *Options, samples []Sample) {
	for _, b := range o.Builds {
		ratios := roundRatios(o, samples, b.Name, "queued", "alone")
		if len(ratios) > 0 {
			fmt.Fprintf(o.Out, "  %-16s a load with stores queued takes %.2f of one without (%.2f to %.2f over %d rounds)\n",
				b.Name, median(ratios), slices.Min(ratios), slices.Max(ratios), len(ratios))
		}
	}
}
