package mooncaketest

import (
	"encoding/binary"
	"time"
)

// Event is what a master tells of an object, or, without a key, that all are gone.
type Event struct {
	Key string
	// Stored: it is there, else it was removed, from a medium, "" for cpu.
	Stored bool
	Medium string
	// Tenant is "" for default.
	Tenant string
}

// EventMessage returns the frames that a master sends of events: those of the wheel 0.3.14,
// byte for byte, with --kv_events_backend_id=pool. The first event has the number of the message.
func EventMessage(seq uint64, at time.Time, events ...Event) [][]byte {
	w := eventWriter{ms: uint64(at.UnixMilli())}
	w.bytes = append(w.bytes, 0x93)
	w.whole(w.ms)
	w.bytes = append(w.bytes, 0xdc, byte(len(events)>>8), byte(len(events)))
	if len(events) < 16 {
		w.bytes = append(w.bytes[:len(w.bytes)-3], 0x90|byte(len(events)))
	}
	for i := range events {
		w.event(seq+uint64(i), &events[i])
	}
	w.whole(0)
	return [][]byte{{}, binary.BigEndian.AppendUint64(nil, seq), w.bytes}
}

// eventWriter writes MessagePack.
type eventWriter struct {
	bytes []byte
	ms    uint64
}

func (w *eventWriter) whole(n uint64) {
	if n < 1<<7 {
		w.bytes = append(w.bytes, byte(n))
		return
	}
	w.bytes = binary.BigEndian.AppendUint64(append(w.bytes, 0xcf), n)
}

func (w *eventWriter) text(s string) {
	switch {
	case len(s) < 1<<5:
		w.bytes = append(w.bytes, 0xa0|byte(len(s)))
	case len(s) < 1<<8:
		w.bytes = append(w.bytes, 0xd9, byte(len(s)))
	default:
		w.bytes = append(w.bytes, 0xda, byte(len(s)>>8), byte(len(s)))
	}
	w.bytes = append(w.bytes, s...)
}

func (w *eventWriter) texts(names ...string) {
	for _, s := range names {
		w.text(s)
	}
}

func (w *eventWriter) nothing(names ...string) {
	for _, s := range names {
		w.text(s)
		w.bytes = append(w.bytes, 0xc0)
	}
}

func (w *eventWriter) event(id uint64, e *Event) {
	kind, legacy, fields := "removed", "BlockRemoved", byte(17)
	switch {
	case e.Key == "":
		kind, legacy, fields = "cleared", "AllBlocksCleared", 12
	case e.Stored:
		kind, legacy, fields = "stored", "BlockStored", 21
	}
	w.bytes = append(w.bytes, 0xde, 0, fields)
	if fields < 16 {
		w.bytes = append(w.bytes[:len(w.bytes)-3], 0x80|fields)
	}
	w.text("event_id")
	w.whole(id)
	w.text("timestamp")
	w.whole(w.ms)
	w.texts("event_type", kind, "type", legacy)
	w.nothing("model_name", "block_size", "additional_salt", "lora_name")
	w.texts("tenant_id", orElse(e.Tenant, "default"), "backend_id", "pool", "medium")
	if e.Key == "" {
		w.bytes = append(w.bytes, 0xc0)
	} else {
		w.text(orElse(e.Medium, "cpu"))
	}
	w.text("dp_rank")
	w.whole(0)
	if e.Key == "" {
		return
	}
	w.nothing("group_id")
	w.texts("object_key", e.Key)
	for _, name := range []string{"seq_hashes", "block_hashes"} {
		w.text(name)
		w.bytes = append(w.bytes, 0x90)
	}
	if !e.Stored {
		w.nothing("base_block_idx")
		return
	}
	w.nothing("session_id", "base_block_idx", "parent_hash", "token_ids", "parent_block_hash")
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
