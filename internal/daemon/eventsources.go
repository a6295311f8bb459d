package daemon

import (
	"github.com/mooncake-sidecar/sidecar/lookupd/events"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/disk"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// namespaces implements events.Catalog.
type namespaces struct{ *embedded.Master }

// Namespaces implements events.Catalog.
func (n namespaces) Namespaces() (known []events.Known) {
	for _, entry := range n.Master.Namespaces() {
		known = append(known, events.Known{Digest: entry.Digest, Spec: entry.Spec})
	}
	return known
}

// memoryChanges is the master as a source of events.
type memoryChanges struct{ *embedded.Master }

var memoryKinds = map[embedded.ChangeKind]events.Kind{
	embedded.Stored: events.Stored, embedded.Removed: events.Removed, embedded.Cleared: events.Cleared, embedded.Opened: events.Opened,
}

// Changes implements events.Source.
func (m memoryChanges) Changes(dst []events.Change, after uint64, limit int) ([]events.Change, bool) {
	changes, complete := m.Master.Changes(nil, after, limit)
	return m.join(dst, changes), complete
}

// Walk implements events.Source.
func (m memoryChanges) Walk(dst []events.Change, from uint32) ([]events.Change, uint32, uint64) {
	chunks, next, seq := m.Master.Walk(nil, from)
	return m.join(dst, chunks), next, seq
}

func (m memoryChanges) join(dst []events.Change, changes []embedded.Change) []events.Change {
	if len(changes) == 0 {
		return dst
	}
	digests := map[store.NamespaceID]events.Namespace{}
	for _, entry := range m.Namespaces() {
		digests[entry.ID] = entry.Digest
	}
	for i := range changes {
		c := &changes[i]
		dst = append(dst, events.Change{
			Seq: c.Seq, Kind: memoryKinds[c.Kind], Namespace: digests[c.Namespace], Group: c.Group, Hash: c.Hash, Record: c.Record,
		})
	}
	return dst
}

// diskChanges is the disk tier as a source of events.
type diskChanges struct{ *disk.Tier }

// Changes implements events.Source.
func (d diskChanges) Changes(dst []events.Change, after uint64, limit int) ([]events.Change, bool) {
	changes, complete := d.Tier.Changes(nil, after, limit)
	return joinDisk(dst, changes), complete
}

// Walk implements events.Source.
func (d diskChanges) Walk(dst []events.Change, from uint32) ([]events.Change, uint32, uint64) {
	chunks, next, seq := d.Tier.Walk(nil, from)
	return joinDisk(dst, chunks), next, seq
}

func joinDisk(dst []events.Change, changes []disk.Change) []events.Change {
	for i := range changes {
		c := &changes[i]
		kind := events.Removed
		if c.Stored {
			kind = events.Stored
		}
		dst = append(dst, events.Change{Seq: c.Seq, Kind: kind, Namespace: c.Namespace, Group: uint32(c.Group), Hash: c.Hash, Record: c.Entry})
	}
	return dst
}
