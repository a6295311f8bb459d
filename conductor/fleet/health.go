package fleet

import "time"

// health says whether an engine is in use. It is pure.
type health struct {
	up bool
	// failed and well are polls in a row.
	failed, well int
	// urgent: the next poll that fails is enough.
	urgent bool
	since  time.Time
	err    error
}

// polled takes account of a poll, and says whether the engine came or went.
func (h *health) polled(err error, o *Options, now time.Time) (changed bool) {
	if err == nil {
		h.failed, h.urgent = 0, false
		if h.well++; !h.up && h.well >= o.RecoverAfter {
			h.up, h.since, h.err = true, now, nil
			return true
		}
		return false
	}
	h.well, h.err = 0, err
	if h.failed++; h.up && (h.urgent || h.failed >= o.FailAfter) {
		h.down(now)
		return true
	}
	return false
}

func (h *health) down(now time.Time) { h.up, h.urgent, h.since = false, false, now }

// refused takes account of an engine that does not listen.
func (h *health) refused(err error, now time.Time) (changed bool) {
	h.well, h.err = 0, err
	if !h.up {
		return false
	}
	h.down(now)
	return true
}
