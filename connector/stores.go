package connector

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// StoreBatch is a store job: it asks for what one step of the engine completed,
// of however many requests, to be stored. It is cancelled and answered as one,
// because a step may complete blocks of hundreds of requests, and the engine's
// threads must not pay for each. The bytes are final when the frame arrives
// (host) or when the event has completed (cuda).
//
// On the wire the parts are columns over three buffers; see storeWire.
type StoreBatch struct {
	Type  string
	Job   uint64
	Epoch uint64
	// Generation is the namespace's that the engine knew when the requests of the
	// job began to run; the job is stored under no other.
	Generation uint64
	// Event is the slot of the pre-shared event ring, -1 for none.
	Event int
	Parts []StoreJob
}

// StoreJob is one request's part of a StoreBatch.
type StoreJob struct {
	// Request is the engine's request id; ids repeat after preemption.
	Request string
	// TokenLen is the save boundary in tokens, a multiple of the scheduler
	// block; 0 for a part of boundary puts alone.
	TokenLen int
	// CompletedTokens is the computed length at the end of the step.
	CompletedTokens int
	PromptTokens    int
	// PrefillEnd is the length of the current prefill, replayed outputs included.
	PrefillEnd int
	// Hashes are the request's block hashes from number FirstHash on, of HashLen
	// bytes each; the parent of chunk i and its depth follow from them.
	HashLen   int
	FirstHash int
	Hashes    []byte
	// Blocks is core's current block table by store group: little-endian u32. It
	// begins with block FirstBlock of the request (nil: 0 for each); in front of
	// that, and behind its end, is nothing to store.
	FirstBlock []int
	Blocks     [][]byte
	// BoundaryPuts are blocks stored under an explicit prefix hash:
	// (store group, block id, tokens).
	BoundaryPuts [][3]int
	Label        Label
	Controls     Controls
}

// Label is what chunks are stored with, beside their bytes.
type Label struct {
	_msgpack struct{} `msgpack:",as_array"` //nolint:unused // read by msgpack
	// SaltTag is a digest of the request's cache salt, empty without one.
	SaltTag string
	// TTLSeconds is how long the chunks live, 0: as long as the namespace's do.
	TTLSeconds int
	// Pin is how strongly they are kept: 0 as others, 1 evicted last, 2 not evicted.
	Pin int
}

// Limits of a store job.
const (
	// MaxParts bounds the parts of a batch: requests that an engine runs at once.
	MaxParts = 1 << 14
	// MaxTTLSeconds is a century: what the store can count.
	MaxTTLSeconds = 100 * 365 * 24 * 3600

	maxPin = 2
	// noLimit stands in a row for no max_offload_tokens.
	noLimit = 1<<32 - 1
)

// Columns of a part's row in storeWire.Rows. Behind them are, by store group,
// the first block's number and the count of blocks.
const (
	colTokenLen = iota
	colCompleted
	colPrompt
	colPrefillEnd
	colMaxOffload
	colLabel
	colFirstHash
	colHashes
	fixedColumns
)

// storeWire is a StoreBatch as it travels. Everything counted in u32 is little
// endian. Parts take their hashes and blocks from the buffers in turn.
type storeWire struct {
	Type       string   `msgpack:"t"`
	Job        uint64   `msgpack:"job"`
	Epoch      uint64   `msgpack:"epoch"`
	Generation uint64   `msgpack:"generation"`
	Event      int      `msgpack:"event"`
	Requests   []string `msgpack:"reqs"`
	Groups     int      `msgpack:"groups"`
	Rows       []byte   `msgpack:"rows"`
	HashLen    int      `msgpack:"hash_len"`
	Hashes     []byte   `msgpack:"hashes"`
	Blocks     []byte   `msgpack:"blocks"`
	// Puts are (part, store group, block, tokens), u32 each, in the parts' order.
	Puts   []byte  `msgpack:"puts,omitempty"`
	Labels []Label `msgpack:"labels"`
}

// EncodeMsgpack implements msgpack.CustomEncoder.
//
// REQUIRES: the parts have as many tables each, and hashes of one length.
func (m *StoreBatch) EncodeMsgpack(enc *msgpack.Encoder) error {
	w := storeWire{Type: m.Type, Job: m.Job, Epoch: m.Epoch, Generation: m.Generation, Event: m.Event}
	u32 := func(to *[]byte, n int) { *to = binary.LittleEndian.AppendUint32(*to, uint32(n)) }
	labels := map[Label]int{}
	for i := range m.Parts {
		p := &m.Parts[i]
		if i == 0 {
			w.Groups = len(p.Blocks)
		}
		if len(p.Blocks) != w.Groups {
			return fmt.Errorf("part %d has %d block tables, the first has %d", i, len(p.Blocks), w.Groups)
		}
		if len(p.Hashes) > 0 {
			if w.HashLen == 0 {
				w.HashLen = p.HashLen
			}
			if p.HashLen != w.HashLen || p.HashLen <= 0 {
				return fmt.Errorf("part %d has hashes of %d bytes, others of %d", i, p.HashLen, w.HashLen)
			}
		}
		label, known := labels[p.Label]
		if !known {
			label = len(w.Labels)
			labels[p.Label] = label
			w.Labels = append(w.Labels, p.Label)
		}
		most := noLimit
		if p.Controls.MaxOffloadTokens != nil {
			most = *p.Controls.MaxOffloadTokens
		}
		w.Requests = append(w.Requests, p.Request)
		for _, n := range [fixedColumns]int{p.TokenLen, p.CompletedTokens, p.PromptTokens, p.PrefillEnd, most, label, p.FirstHash, len(p.Hashes) / max(p.HashLen, 1)} {
			u32(&w.Rows, n)
		}
		for g, table := range p.Blocks {
			u32(&w.Rows, p.FirstBlockOf(g))
			u32(&w.Rows, len(table)/4)
			w.Blocks = append(w.Blocks, table...)
		}
		w.Hashes = append(w.Hashes, p.Hashes...)
		for _, put := range p.BoundaryPuts {
			for _, n := range [4]int{i, put[0], put[1], put[2]} {
				u32(&w.Puts, n)
			}
		}
	}
	return enc.Encode(&w)
}

// DecodeMsgpack implements msgpack.CustomDecoder. The parts own their bytes.
func (m *StoreBatch) DecodeMsgpack(dec *msgpack.Decoder) error {
	var w storeWire
	if err := dec.Decode(&w); err != nil {
		return err
	}
	*m = StoreBatch{Type: w.Type, Job: w.Job, Epoch: w.Epoch, Generation: w.Generation, Event: w.Event}
	return w.split(m)
}

var errRows = errors.New("the parts' counts do not add up to the buffers")

// split cuts the buffers into parts. All sizes that are allocated are bounded by
// what came.
func (w *storeWire) split(m *StoreBatch) error {
	width := 4 * (fixedColumns + 2*w.Groups)
	switch {
	case w.Groups < 0 || w.Groups > maxGroups:
		return fmt.Errorf("%d groups, at most %d are accepted", w.Groups, maxGroups)
	case w.HashLen < 0 || w.HashLen > kv.MaxHashBytes:
		return fmt.Errorf("hash length %d, at most %d bytes are accepted", w.HashLen, kv.MaxHashBytes)
	case len(w.Requests) > MaxParts:
		return fmt.Errorf("%d parts, at most %d are accepted", len(w.Requests), MaxParts)
	case len(w.Rows) != width*len(w.Requests):
		return fmt.Errorf("rows have %d bytes for %d parts of %d", len(w.Rows), len(w.Requests), width)
	case len(w.Blocks)%4 != 0:
		return fmt.Errorf("blocks have %d bytes, no multiple of 4", len(w.Blocks))
	case len(w.Puts)%16 != 0:
		return fmt.Errorf("boundary puts have %d bytes, no multiple of 16", len(w.Puts))
	}
	if _, err := kv.NewHashBlob(w.Hashes, w.HashLen); err != nil {
		return err
	}
	hashes, blocks := w.Hashes, w.Blocks
	m.Parts = make([]StoreJob, len(w.Requests))
	tables := make([][]byte, len(w.Requests)*w.Groups)
	firsts := make([]int, len(tables))
	for i, request := range w.Requests {
		row := w.Rows[i*width : (i+1)*width]
		at := func(column int) int { return int(binary.LittleEndian.Uint32(row[4*column:])) }
		if at(colLabel) >= len(w.Labels) {
			return fmt.Errorf("part %d: label %d of %d", i, at(colLabel), len(w.Labels))
		}
		p := &m.Parts[i]
		*p = StoreJob{
			Request: request, TokenLen: at(colTokenLen), CompletedTokens: at(colCompleted), PromptTokens: at(colPrompt),
			PrefillEnd: at(colPrefillEnd), FirstHash: at(colFirstHash), Label: w.Labels[at(colLabel)],
			FirstBlock: firsts[:w.Groups:w.Groups], Blocks: tables[:w.Groups:w.Groups],
		}
		firsts, tables = firsts[w.Groups:], tables[w.Groups:]
		if most := at(colMaxOffload); most != noLimit {
			p.Controls.MaxOffloadTokens = &most
		}
		var ok bool
		if at(colHashes) > 0 {
			p.HashLen = w.HashLen
			if p.Hashes, hashes, ok = cut(hashes, at(colHashes), w.HashLen); !ok {
				return fmt.Errorf("part %d: hashes: %w", i, errRows)
			}
		}
		for g := range w.Groups {
			p.FirstBlock[g] = at(fixedColumns + 2*g)
			if p.Blocks[g], blocks, ok = cut(blocks, at(fixedColumns+2*g+1), 4); !ok {
				return fmt.Errorf("part %d: blocks: %w", i, errRows)
			}
		}
	}
	if len(hashes)+len(blocks) > 0 {
		return fmt.Errorf("%d bytes of hashes and %d of blocks are left: %w", len(hashes), len(blocks), errRows)
	}
	return w.splitPuts(m)
}

// cut takes count items of size bytes from the front of a buffer. Items of no
// size are not there.
//
// REQUIRES: count and size are not negative.
func cut(buffer []byte, count, size int) (taken, rest []byte, ok bool) {
	if count > len(buffer)/max(size, 1) || size == 0 && count > 0 {
		return nil, nil, false
	}
	n := count * size
	return buffer[:n:n], buffer[n:], true
}

func (w *storeWire) splitPuts(m *StoreBatch) error {
	for puts := w.Puts; len(puts) > 0; puts = puts[16:] {
		at := func(column int) int { return int(binary.LittleEndian.Uint32(puts[4*column:])) }
		if at(0) >= len(m.Parts) {
			return fmt.Errorf("a boundary put of part %d of %d", at(0), len(m.Parts))
		}
		p := &m.Parts[at(0)]
		p.BoundaryPuts = append(p.BoundaryPuts, [3]int{at(1), at(2), at(3)})
	}
	return nil
}

// FirstBlockOf returns the number of the first block in a group's table.
func (p *StoreJob) FirstBlockOf(group int) int {
	if group < len(p.FirstBlock) {
		return p.FirstBlock[group]
	}
	return 0
}

func (m *StoreBatch) check() error {
	if err := checkJob(m.Job); err != nil {
		return err
	}
	for i := range m.Parts {
		if err := m.Parts[i].check(); err != nil {
			return fmt.Errorf("part %d: %w", i, err)
		}
	}
	return nil
}

func (p *StoreJob) check() error {
	for _, b := range p.BoundaryPuts {
		if b[0] >= maxGroups || b[1] >= MaxBlocks || b[2] < 1 || b[2] > maxTokens {
			return fmt.Errorf("boundary put (group %d, block %d, %d tokens)", b[0], b[1], b[2])
		}
	}
	for g, block := range p.FirstBlock {
		if block > maxTokens {
			return fmt.Errorf("group %d: a table that begins with block %d", g, block)
		}
	}
	if p.Label.TTLSeconds < 0 || p.Label.TTLSeconds > MaxTTLSeconds || p.Label.Pin < 0 || p.Label.Pin > maxPin {
		return fmt.Errorf("a time to live of %d s, pin %d", p.Label.TTLSeconds, p.Label.Pin)
	}
	return first(checkText(p.Request, p.Label.SaltTag), checkControls(p.Controls),
		checkTokens(p.TokenLen, p.CompletedTokens, p.PromptTokens, p.PrefillEnd, p.FirstHash))
}
