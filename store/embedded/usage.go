package embedded

import "github.com/mooncake-sidecar/sidecar/store"

// UsageByNamespace returns what each namespace has in memory.
func (m *Master) UsageByNamespace() []Usage {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var out []Usage
	for i, ns := range m.namespaces {
		if ns != nil {
			out = append(out, m.books.namespaces[i].usage(Owner{Namespace: store.NamespaceID(i)}))
		}
	}
	return out
}

// UsageByTag returns what each salt tag has in memory or may have; first what
// has none.
func (m *Master) UsageByTag() []Usage {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var out []Usage
	for i := range m.books.tags {
		if a := &m.books.tags[i]; i == 0 || m.tags[i] != "" && (a.bytes > 0 || a.quota > 0 || a.refused > 0) {
			out = append(out, a.usage(Owner{Tag: m.tags[i]}))
		}
	}
	return out
}

func (a *account) usage(o Owner) Usage {
	return Usage{Owner: o, Chunks: a.chunks, Bytes: a.bytes, Quota: a.quota, Pinned: a.pinned, Refused: a.refused}
}
