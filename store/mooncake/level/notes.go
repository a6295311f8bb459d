package level

import (
	"sync"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store/disk"
)

// Note is a removal that was taken and is not known to be through.
type Note struct {
	Namespace [32]byte
	// All: all that the cluster has of the namespace; else one chunk.
	All   bool
	Group uint16
	Hash  kv.Hash
}

// Notes outlive this process, so that the next one goes on with its removals.
type Notes interface {
	// Read returns what was added and not cleared, as far as it can be read.
	Read() ([]Note, error)
	// Add adds; when it has returned without an error, the death of this process does
	// not undo it.
	Add(notes []Note) error
	// Clear drops all but some.
	Clear(keep []Note) error
}

// maxNotes bounds what was noted since nothing was owed. What is beyond is refused.
const maxNotes = 1 << 20

// ledger is what was noted.
type ledger struct {
	file  sync.Mutex // is held while the notes are written, and never waited for under mu
	mu    sync.Mutex
	fresh []Note              // are not written yet
	count int                 // fresh ones, and those that are written
	later map[[32]byte][]Note // are of namespaces that are not open yet; written
	wait  int                 // how many those are
}

// readNotes takes over what a process before this one has left.
func (l *Level) readNotes() {
	if l.opts.Notes == nil {
		return
	}
	left, err := l.opts.Notes.Read()
	if err != nil {
		l.opts.Log.Warn("removals in the Mooncake cluster that a daemon before this one has left may be forgotten", "error", err)
	}
	n := &l.ledger
	n.count, n.wait, n.later = len(left), len(left), map[[32]byte][]Note{}
	for i := range left {
		n.later[left[i].Namespace] = append(n.later[left[i].Namespace], left[i])
	}
}

// resume goes on with the removals of a namespace that is open now.
func (l *Level) resume(s *space, digest [32]byte) {
	n := &l.ledger
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range n.later[digest] {
		note := &n.later[digest][i]
		if note.All {
			if l.client.Soil(s.name) != nil {
				return // its name is that of a moment ago: there is none
			}
			continue
		}
		l.client.Owe(s.name, uint32(note.Group), &note.Hash)
	}
	if left := len(n.later[digest]); left > 0 {
		l.opts.Log.Info("removals in the Mooncake cluster that were under way go on", "model", s.spec.Model, "removals", left)
		n.wait -= left
		delete(n.later, digest)
	}
}

// begin takes a removal down if take begins it, and if there is room for one of many.
func (l *Level) begin(note Note, take func() bool) bool {
	if l.opts.Notes == nil {
		return take()
	}
	n := &l.ledger
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.count >= maxNotes && !note.All || !take() {
		return false
	}
	n.fresh = append(n.fresh, note)
	n.count++
	return true
}

// Settle implements embedded.Cluster: when it has returned without an error, no
// removal that was taken is forgotten, whatever becomes of this process.
func (l *Level) Settle() error {
	if l.opts.Notes == nil {
		return nil
	}
	n := &l.ledger
	n.file.Lock()
	defer n.file.Unlock()
	n.mu.Lock()
	fresh := n.fresh
	n.fresh = nil
	n.mu.Unlock()
	if len(fresh) == 0 {
		return nil
	}
	err := l.opts.Notes.Add(fresh)
	if err != nil {
		n.mu.Lock()
		n.fresh = append(fresh, n.fresh...)
		n.mu.Unlock()
	}
	return err
}

// keepNotes writes what was taken, and clears it when all of it is through.
func (l *Level) keepNotes() {
	if l.opts.Notes == nil {
		return
	}
	if err := l.Settle(); err != nil {
		return // whoever removes is told; it is tried again
	}
	n := &l.ledger
	n.file.Lock()
	defer n.file.Unlock()
	n.mu.Lock()
	through := n.count > n.wait && len(n.fresh) == 0 && !l.client.Owes()
	var keep []Note
	if through {
		n.count = n.wait
		for _, notes := range n.later {
			keep = append(keep, notes...)
		}
	}
	n.mu.Unlock()
	if !through {
		return
	}
	if err := l.opts.Notes.Clear(keep); err != nil {
		l.opts.Log.Warn("removals in the Mooncake cluster that are through are noted yet: the next daemon makes them again", "error", err)
	}
}

// noteOf is the note of a chunk.
func noteOf(key *disk.Key) Note {
	return Note{Namespace: key.Namespace, Group: key.Group, Hash: key.Hash}
}
