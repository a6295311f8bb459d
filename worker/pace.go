package worker

import "time"

// maxPaced is longer than a piece takes on a machine with no core to spare. A piece
// that took long for another reason than its bytes, a stopped machine, is no reason
// to rest as long.
const maxPaced = 100 * time.Millisecond

// pacer keeps the stores of a session to a share of the time. What they rest is due
// before the next piece, of whatever job, and not after the last: what is copied is
// published first, and a job that is done is answered.
type pacer struct {
	pace  int // percent of the time for which stores copy, at most
	until time.Time
}

// copied notes a piece that was copied from began to now.
func (p *pacer) copied(began, now time.Time) {
	took := min(now.Sub(began), maxPaced)
	p.until = now.Add(took * time.Duration(100-p.pace) / time.Duration(p.pace))
}

// due returns how long to rest before the next piece.
func (p *pacer) due(now time.Time) time.Duration { return max(p.until.Sub(now), 0) }

// pacedBatch returns how many bytes stores copy before they publish, at a pace:
// the lower it is the fewer, down to a piece, as what is copied but not published
// by the job's deadline is lost. Of 64 MiB, at any pace, the rests within a batch
// are less than two seconds together.
func pacedBatch(batchBytes, pace int) int {
	return min(batchBytes, max(storePieceBytes, batchBytes/100*pace))
}
