package suite

import (
	"context"
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/bench/machine"
	"github.com/mooncake-sidecar/sidecar/bench/pause"
)

// Load is what the machine did while a part ran.
type Load struct {
	// PartCores and OtherCores are how many cores' time the part and everything else on
	// the machine used, in the mean.
	PartCores  float64 `json:"part_cores"`
	OtherCores float64 `json:"other_cores"`
	// MostOtherCores is the most of the others in any few seconds.
	MostOtherCores float64 `json:"most_other_cores"`
	// AverageBegin and AverageEnd are the load averages of a minute.
	AverageBegin string `json:"load_average_begin"`
	AverageEnd   string `json:"load_average_end"`
}

// String is the load for people.
func (l *Load) String() string {
	return fmt.Sprintf("%.1f cores busy for it and %.1f with other work (at most %.1f); load average %s, then %s", l.PartCores, l.OtherCores, l.MostOtherCores, l.AverageBegin, l.AverageEnd)
}

// samplePause is how far apart times are taken: ticks of 10 ms then are little.
const samplePause = 2 * time.Second

// reading is the processor time so far of descendants and of everything else.
type reading struct {
	at          time.Time
	ours, other time.Duration
}

func (f *family) read() (reading, error) {
	all, err := machine.Busy()
	if err != nil {
		return reading{}, err
	}
	ours, err := f.used()
	return reading{time.Now(), ours, all - ours}, err
}

// cores are how many were busy between two readings; a process that ended between
// the looks at the machine and at its processes must not make them negative.
func cores(used, wall time.Duration) float64 { return max(0, used.Seconds()/max(wall.Seconds(), 1e-9)) }

// watch measures the load until the context ends.
func (f *family) watch(ctx context.Context) (Load, error) {
	l := Load{AverageBegin: machine.Load()}
	begin, err := f.read()
	if err != nil {
		return l, err
	}
	last := begin
	for ended := false; !ended; {
		ended = pause.For(ctx, samplePause) != nil
		now, err := f.read()
		if err != nil {
			return l, err
		}
		if wall := now.at.Sub(last.at); wall > samplePause/2 {
			l.MostOtherCores = max(l.MostOtherCores, cores(now.other-last.other, wall))
			last = now
		}
		l.PartCores, l.OtherCores = cores(now.ours-begin.ours, now.at.Sub(begin.at)), cores(now.other-begin.other, now.at.Sub(begin.at))
	}
	l.MostOtherCores = max(l.MostOtherCores, l.OtherCores)
	l.AverageEnd = machine.Load()
	return l, nil
}
