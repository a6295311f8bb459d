package embedded

import (
	"encoding/json"
	"fmt"
	"sync/atomic"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// Memory is a segment's mapping. Slabs are made usable one after the other, so
// that the daemon serves before all of its memory is faulted in.
type Memory interface {
	// Bytes returns the whole mapping, from the header to the end of the data.
	Bytes() []byte
	// Words returns the same memory as 64-bit words in the machine's byte order,
	// for what is read while it is written.
	Words() []atomic.Uint64
	// Prepare allocates [offset, offset+n) of the file for good, so that touching
	// it later can't fail. It may be asked for the same range again.
	Prepare(offset, n uint64) error
}

// recordsEnd is where the records end that are usable.
func (s *segment) recordsEnd() uint64 { return s.recordsAt + uint64(s.readyRecords())*recordBytes }

// segment is the master's view of the mapped segment.
type segment struct {
	Layout
	mem []byte
	// records are the words of the record table.
	records []atomic.Uint64
}

func newSegment(mem Memory, layout Layout) *segment {
	return &segment{Layout: layout, mem: mem.Bytes(), records: mem.Words()[layout.recordsAt/8:][:uint64(layout.Records)*recordWords]}
}

// clientEntry is a store client's line in the session table.
type clientEntry struct {
	client uint64
	pid    uint32
	start  uint64 // the process' start time in clock ticks, tells reused pids apart
}

func (s *segment) readClient(i int) (clientEntry, bool) {
	b := s.mem[s.sessionsAt+uint64(i)*sessionBytes:][:sessionBytes]
	e := clientEntry{client: le.Uint64(b), pid: le.Uint32(b[8:]), start: le.Uint64(b[16:])}
	return e, e.client != 0
}

func (s *segment) writeClient(i int, e clientEntry) {
	b := s.mem[s.sessionsAt+uint64(i)*sessionBytes:][:sessionBytes]
	le.PutUint32(b[8:], e.pid)
	le.PutUint64(b[16:], e.start)
	le.PutUint64(b, e.client)
}

func (s *segment) clearClient(i int) {
	b := s.mem[s.sessionsAt+uint64(i)*sessionBytes:][:sessionBytes]
	clear(b)
}

// A namespace's line is the length of its description, the description, and at
// the end of the line the reset of before which a cluster has nothing, its quota, its
// chunks' time to live and how often it was reset.
const (
	resetsAt         = namespaceBytes - 4
	nsTTLAt          = resetsAt - 4
	nsQuotaAt        = nsTTLAt - 8
	nsCleanAt        = nsQuotaAt - 4
	maxNamespaceSpec = nsCleanAt - 4
)

// namespaceTTL is how many seconds a namespace's chunks live that are stored
// without a time of their own, 0 for ever.
func (s *segment) namespaceTTL(i int) uint32 {
	return le.Uint32(s.mem[s.namespacesAt+uint64(i)*namespaceBytes+nsTTLAt:])
}

func (s *segment) setNamespaceTTL(i int, seconds uint32) {
	le.PutUint32(s.mem[s.namespacesAt+uint64(i)*namespaceBytes+nsTTLAt:], seconds)
}

// namespaceQuota is the most bytes that a namespace's chunks may take, 0 for no
// bound.
func (s *segment) namespaceQuota(i int) uint64 {
	return le.Uint64(s.mem[s.namespacesAt+uint64(i)*namespaceBytes+nsQuotaAt:])
}

func (s *segment) setNamespaceQuota(i int, bytes uint64) {
	le.PutUint64(s.mem[s.namespacesAt+uint64(i)*namespaceBytes+nsQuotaAt:], bytes)
}

func (s *segment) resets(i int) uint32 {
	return le.Uint32(s.mem[s.namespacesAt+uint64(i)*namespaceBytes+resetsAt:])
}

func (s *segment) setResets(i int, n uint32) {
	le.PutUint32(s.mem[s.namespacesAt+uint64(i)*namespaceBytes+resetsAt:], n)
}

// cleanReset is the number of the namespace's last reset that is through in the
// cluster: nothing of before it is there. A segment of before there was this number
// has 0.
func (s *segment) cleanReset(i int) uint32 {
	return le.Uint32(s.mem[s.namespacesAt+uint64(i)*namespaceBytes+nsCleanAt:])
}

func (s *segment) setCleanReset(i int, n uint32) {
	le.PutUint32(s.mem[s.namespacesAt+uint64(i)*namespaceBytes+nsCleanAt:], n)
}

func (s *segment) readNamespace(i int) (*kv.NamespaceSpec, error) {
	b := s.mem[s.namespacesAt+uint64(i)*namespaceBytes:][:namespaceBytes]
	n := le.Uint32(b)
	if n == 0 {
		return nil, nil
	}
	if n > maxNamespaceSpec {
		return nil, fmt.Errorf("namespace %d: length %d", i, n)
	}
	spec := new(kv.NamespaceSpec)
	if err := json.Unmarshal(b[4:4+n], spec); err != nil {
		return nil, fmt.Errorf("namespace %d: %w", i, err)
	}
	if err := spec.Validate(); err != nil {
		return nil, fmt.Errorf("namespace %d: %w", i, err)
	}
	return spec, nil
}

func (s *segment) writeNamespace(i int, spec *kv.NamespaceSpec) error {
	encoded, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode namespace: %w", err)
	}
	if len(encoded) > maxNamespaceSpec {
		return fmt.Errorf("%w: namespace description of %d bytes, at most %d fit", ErrOption, len(encoded), maxNamespaceSpec)
	}
	b := s.mem[s.namespacesAt+uint64(i)*namespaceBytes:][:namespaceBytes]
	copy(b[4:], encoded)
	le.PutUint32(b, uint32(len(encoded)))
	return nil
}

func (s *segment) incarnation() uint32 { return le.Uint32(s.mem[hdrIncarn:]) }

func (s *segment) setIncarnation(n uint32) { le.PutUint32(s.mem[hdrIncarn:], n) }

// prepared is the number of slabs whose memory has been allocated.
func (s *segment) prepared() uint32 { return min(le.Uint32(s.mem[hdrPrepared:]), s.Slabs) }

func (s *segment) setPrepared(n uint32) { le.PutUint32(s.mem[hdrPrepared:], n) }
