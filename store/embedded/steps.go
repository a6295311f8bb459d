package embedded

// stepSizes say how much is done while the lock is held. Tests do less at a time,
// and other things in between.
type stepSizes struct {
	items   int    // itemStep
	stale   uint32 // staleStep
	remove  uint32 // removeStep
	evict   int    // evictStep
	quota   int    // quotaStep
	order   uint32 // orderStep
	between func() // called between two steps, unless it is nil
}

func defaultSteps() stepSizes {
	return stepSizes{items: itemStep, stale: staleStep, remove: removeStep, evict: evictStep, quota: quotaStep, order: orderStep}
}

// betweenSteps lets a test do something.
//
// REQUIRES: the lock is not held.
func (m *Master) betweenSteps() {
	if between := m.opts.steps.between; between != nil {
		between()
	}
}

// itemStep is how many items of a call are done at a time. In between others have
// the store, so that nobody waits for a call that names very many.
const itemStep = 256

// inSteps does a call's items from the first on, some at a time, each time with
// the lock held, until one of them fails. do checks what the call relies on each
// time: it may not hold any more.
func (m *Master) inSteps(items int, do func(from, to int) error) error {
	step := m.opts.steps.items
	for from, first := 0, true; from < items || first; from, first = from+step, false {
		if !first {
			m.betweenSteps()
		}
		if err := m.locked(func() error { return do(from, min(from+step, items)) }); err != nil {
			return err
		}
	}
	return nil
}

// locked calls do with the lock held.
func (m *Master) locked(do func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return do()
}
