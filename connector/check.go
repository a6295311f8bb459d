package connector

import (
	"fmt"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// Limits of fields.
const (
	// MaxFDs is the kernel's limit of descriptors in one message.
	MaxFDs = 253
	// MaxJobSlots bounds the job board: 8 MiB.
	MaxJobSlots = 1 << 20
	// MaxBlocks bounds block ids.
	MaxBlocks = 1 << 31

	// HandleBytes is the length of a CUDA IPC handle, UUIDBytes of a GPU's name.
	HandleBytes = 64
	UUIDBytes   = 16

	maxEvents   = 1024
	maxText     = 4096
	maxTokens   = 1 << 31
	maxGroups   = 64
	maxRegions  = 4096
	maxSegments = 1 << 16
)

func checkText(texts ...string) error {
	for _, t := range texts {
		if len(t) > maxText {
			return fmt.Errorf("a text of %d bytes, at most %d are accepted", len(t), maxText)
		}
	}
	return nil
}

func checkTokens(counts ...int) error {
	for _, n := range counts {
		if n < 0 || n > maxTokens {
			return fmt.Errorf("a token count of %d", n)
		}
	}
	return nil
}

func checkTables(blocks [][]byte) error {
	if len(blocks) > maxGroups {
		return fmt.Errorf("%d block tables, at most %d are accepted", len(blocks), maxGroups)
	}
	for g, table := range blocks {
		if len(table)%4 != 0 {
			return fmt.Errorf("the block table of group %d has %d bytes, no multiple of 4", g, len(table))
		}
	}
	return nil
}

func checkControls(c Controls) error {
	for _, p := range []*int{c.MaxLoadTokens, c.MaxOffloadTokens} {
		if p != nil {
			if err := checkTokens(*p); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkFDs(n int) error {
	if n < 0 || n > MaxFDs {
		return fmt.Errorf("%d descriptors, at most %d are accepted", n, MaxFDs)
	}
	return nil
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (m *Hello) check() error {
	return checkText(m.Role, m.EngineID, m.Version)
}

func (m *Welcome) check() error {
	return checkText(m.Daemon, m.Version)
}

func (m *Error) check() error { return nil }

func (m *Register) check() error {
	for _, s := range m.Namespace.Groups {
		if err := checkText(string(s.Kind), s.Identity); err != nil {
			return err
		}
	}
	return first(checkFDs(m.FDs), checkText(m.Device, m.LookupEngine), m.Namespace.Validate(), m.checkCounts(), m.checkCUDA())
}

// checkCUDA checks what a GPU's registration has beside.
func (m *Register) checkCUDA() error {
	if n := len(m.DeviceUUID); n != 0 && n != UUIDBytes {
		return fmt.Errorf("device_uuid has %d bytes, want %d", n, UUIDBytes)
	}
	if len(m.Events) > maxEvents {
		return fmt.Errorf("%d events, at most %d are accepted", len(m.Events), maxEvents)
	}
	for i, handle := range m.Events {
		if len(handle) != HandleBytes {
			return fmt.Errorf("the handle of event %d has %d bytes, want %d", i, len(handle), HandleBytes)
		}
	}
	for i := range m.Regions {
		r := &m.Regions[i]
		if len(r.Chunks) > MaxFDs {
			return fmt.Errorf("region %d has %d chunks, at most %d are accepted", i, len(r.Chunks), MaxFDs)
		}
		if n := len(r.Handle); n != 0 && n != HandleBytes*max(len(r.Chunks), 1) {
			return fmt.Errorf("the handle of region %d has %d bytes, want %d for each chunk", i, n, HandleBytes)
		}
	}
	return nil
}

// checkCounts checks what must fit together inside a registration, but for the
// geometry of the segments.
func (m *Register) checkCounts() error {
	n := len(m.Namespace.Groups)
	switch {
	case m.NumBlocks < 2 || m.NumBlocks > MaxBlocks:
		return fmt.Errorf("num_blocks is %d, want 2 to %d", m.NumBlocks, MaxBlocks)
	case len(m.ShardByGroup) != n || len(m.PutStride) != n || len(m.PutPhase) != n:
		return fmt.Errorf("shard_by_group, put_stride and put_phase have %d, %d and %d entries for %d groups",
			len(m.ShardByGroup), len(m.PutStride), len(m.PutPhase), n)
	case len(m.Regions) == 0 || len(m.Regions) > maxRegions:
		return fmt.Errorf("%d regions, want 1 to %d", len(m.Regions), maxRegions)
	case len(m.Segments) == 0 || len(m.Segments) > maxSegments:
		return fmt.Errorf("%d segments, want 1 to %d", len(m.Segments), maxSegments)
	case m.JobSlots < 1 || m.JobSlots > MaxJobSlots:
		return fmt.Errorf("job_slots is %d, want 1 to %d", m.JobSlots, MaxJobSlots)
	case m.JobBoard < 0 || m.JobBoard >= m.FDs:
		return fmt.Errorf("job_board is descriptor %d of %d", m.JobBoard, m.FDs)
	case m.HeldShards < 0 || m.HeldShards > kv.MaxShards:
		return fmt.Errorf("held_shards is %d, want up to %d", m.HeldShards, kv.MaxShards)
	case m.StoreRetention < -1 || m.StoreRetention > maxTokens:
		return fmt.Errorf("store_retention is %d, want -1 (dense), 0 (as the engine) or up to %d tokens", m.StoreRetention, maxTokens)
	}
	for g := range n {
		if first, shards := m.ShardByGroup[g], m.Namespace.Groups[g].Shards; first < 0 || first >= shards || first+m.Held() > shards {
			return fmt.Errorf("group %d: %d shards from %d on, of %d", g, m.Held(), first, shards)
		}
		if m.PutStride[g] < 1 || m.PutPhase[g] < 0 || m.PutPhase[g] >= m.PutStride[g] {
			return fmt.Errorf("group %d: put_phase %d with put_stride %d", g, m.PutPhase[g], m.PutStride[g])
		}
	}
	return nil
}

func (m *Registered) check() error { return checkText(m.NamespaceDigest, m.LookupPath) }

func (m *LoadJob) check() error {
	for _, t := range m.TailBoundaries {
		if t[0] < 0 || t[0] >= maxGroups || t[1] < 1 || t[1] > maxTokens {
			return fmt.Errorf("tail boundary (group %d, %d tokens)", t[0], t[1])
		}
	}
	_, err := kv.NewHashBlob(m.Hashes, m.HashLen)
	return first(checkJob(m.Job), err, checkText(m.Request, m.SaltTag), checkTables(m.Blocks), checkControls(m.Controls),
		checkTokens(m.TokenLen, m.LocalTokens))
}

func (m *Cancel) check() error { return nil }

func (m *Finished) check() error { return first(checkText(m.Requests...), checkText(m.Preempted...)) }

func (m *Result) check() error {
	return first(checkJob(m.Job), checkText(m.Kind, m.Status, m.Reason), checkTables([][]byte{m.Failed, m.Incomplete}))
}

func (m *After) check() error {
	if m.Event < -1 || m.Event >= maxEvents {
		return fmt.Errorf("event %d", m.Event)
	}
	return nil
}

func (m *Ahead) check() error { return checkJob(m.Job) }

func (m *Final) check() error { return nil }

func (m *Ping) check() error { return nil }

func (m *Pong) check() error { return nil }

func (m *Engine) check() error {
	return first(m.Namespace.Validate(), checkText(m.LookupPath, m.LookupEngine), m.checkTimeout())
}

func (m *Generation) check() error { return nil }

func (m *LookupChannel) check() error {
	if m.FDs != 1 {
		return fmt.Errorf("%d descriptors, a lookup channel is one", m.FDs)
	}
	return nil
}

func (m *Segments) check() error {
	if len(m.Segments) > MaxFDs {
		return fmt.Errorf("%d segments, at most %d are accepted", len(m.Segments), MaxFDs)
	}
	for _, s := range m.Segments {
		if err := checkText(s.UUID); err != nil {
			return err
		}
	}
	return checkFDs(m.FDs)
}

func (m *Declare) check() error { return checkText(m.UUID) }

// maxLookupTimeoutMS is the longest that an engine may say it waits for a lookup.
const maxLookupTimeoutMS = 3_600_000

func (m *Engine) checkTimeout() error {
	if m.LookupTimeoutMS < 0 || m.LookupTimeoutMS > maxLookupTimeoutMS {
		return fmt.Errorf("lookup_timeout_ms is %d, want 0 to %d", m.LookupTimeoutMS, maxLookupTimeoutMS)
	}
	return nil
}
