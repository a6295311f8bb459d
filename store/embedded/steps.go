package embedded

// itemStep is how many items of a call are done at a time. In between others have
// the store, so that nobody waits for a call that names very many.
const itemStep = 256

// inSteps does a call's items from the first on, some at a time, each time with
// the lock held, until one of them fails. do checks what the call relies on each
// time: it may not hold any more.
func (m *Master) inSteps(items int, do func(from, to int) error) error {
	for from, first := 0, true; from < items || first; from, first = from+itemStep, false {
		if err := m.locked(func() error { return do(from, min(from+itemStep, items)) }); err != nil {
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
