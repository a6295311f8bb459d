package datapath

import (
	"context"
	"errors"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
)

// Sample is one measured job.
type Sample struct {
	Build string `json:"build"`
	Size  string `json:"size"`
	// Kind is store (of the first prompt), first, warm, restore (of another prompt), ahead (sent before the step),
	// copy-in and copy-out (the yardstick); with busy threads alone and beside; with
	// queued stores alone, queued and stores (until all are done).
	Kind  string `json:"kind"`
	Round int    `json:"round"`
	// Wall is what the engine waited; Ask, Move and Daemon are the worker's words,
	// CPU and Faults what its process used. All times in microseconds.
	Wall   float64 `json:"wall_us"`
	Ask    float64 `json:"ask_us"`
	Move   float64 `json:"move_us"`
	Daemon float64 `json:"daemon_us"`
	CPU    float64 `json:"cpu_us"`
	Faults float64 `json:"faults"`
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// runRound starts the daemons and measures each kind of job.
func runRound(ctx context.Context, o *Options, b Build, g geometry, round int) ([]Sample, error) {
	d, err := startDaemons(ctx, b, 3*g.bytes()+2*o.Queued+64<<20)
	if err != nil {
		return nil, err
	}
	defer d.stop()
	e, err := readyEngine(ctx, d.dir, g, !b.Unverified)
	if err != nil {
		return nil, err
	}
	defer e.close()
	prompt := round * 100
	e.fill(prompt)
	time.Sleep(o.Settle)
	if o.Queued > 0 {
		return runQueued(o, b, e, round)
	}
	if o.Busy > 0 {
		return runBusy(o, b, e, prompt)
	}
	m := &meter{b: b, e: e, round: round, pid: d.worker.Process.Pid}
	m.measure("store", func() (time.Duration, *connector.Result, error) { return e.store(prompt) })
	time.Sleep(o.Settle / 4)
	yard, err := newCopies(e)
	if err != nil {
		return nil, err
	}
	defer yard.close()
	cold := newCaches()
	cold.empty()
	m.measure("first", func() (time.Duration, *connector.Result, error) { return e.load(prompt) })
	for i := range o.Warm {
		cold.empty()
		m.measure("warm", func() (time.Duration, *connector.Result, error) { return e.load(prompt) })
		cold.empty()
		m.add("copy-in", yard.in(2))
		cold.empty()
		m.measure("restore", func() (time.Duration, *connector.Result, error) { return e.store(prompt + 1 + i) })
		cold.empty()
		m.add("copy-out", yard.out(0))
		cold.empty()
		m.measure("ahead", func() (time.Duration, *connector.Result, error) { return e.storeAhead(prompt+1+o.Warm+i, cold.empty) })
		cold.empty()
		m.add("copy-out", yard.out(0))
	}
	if m.err == nil && !e.loaded() {
		m.err = errors.New("the loaded bytes are not the stored ones")
	}
	return m.samples, m.err
}

// add notes a measurement without daemons.
func (m *meter) add(kind string, took time.Duration) {
	m.samples = append(m.samples, Sample{Build: m.b.Name, Size: m.e.g.String(), Kind: kind, Round: m.round, Wall: micros(took)})
}

// meter collects samples until the first error.
type meter struct {
	b       Build
	e       *engine
	pid     int
	round   int
	samples []Sample
	err     error
}

func (m *meter) measure(kind string, do func() (time.Duration, *connector.Result, error)) {
	if m.err != nil {
		return
	}
	before, err := usageOf(m.pid)
	if err != nil {
		m.err = err
		return
	}
	took, r, err := do()
	if err != nil {
		m.err = err
		return
	}
	after, err := usageOf(m.pid)
	if err != nil {
		m.err = err
		return
	}
	used := after.minus(before)
	m.samples = append(m.samples, Sample{
		Build: m.b.Name, Size: m.e.g.String(), Kind: kind, Round: m.round, Wall: micros(took), Ask: float64(r.AskMicros), Move: float64(r.MoveMicros),
		Daemon: float64(r.Micros), CPU: micros(used.cpu), Faults: float64(used.faults),
	})
}
