package connector

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

func testSpec() kv.NamespaceSpec {
	return kv.NamespaceSpec{
		Model: "m", Dtype: "bfloat16", Layout: "LBHNC/rank_local", HashAlgorithm: "sha256",
		HashBytes: 32, HashBlockTokens: 16, SchedulerBlockTokens: 16, RetentionTokens: -1, TP: 1, PP: 1, PCP: 1, DCP: 1,
		Groups: []kv.GroupSpec{{Kind: kv.FullAttention, BlockTokens: 16, ShardBytes: 256, Shards: 1}},
	}
}

func testRegister() *Register {
	return &Register{
		Type: TypeRegister, FDs: 2, Namespace: testSpec(), Device: "host", NumBlocks: 8,
		ShardByGroup: []int{0}, PutStride: []int{1}, PutPhase: []int{0},
		Regions:  []KVRegion{{Kind: "memfd", FD: 0, Bytes: 2048}},
		Segments: []KVSegment{{Offset: 0, BlockStride: 128, Bytes: 128}, {Offset: 1024, BlockStride: 128, Bytes: 128}},
		JobBoard: 1, JobSlots: 16, LookupEngine: "e", Verify: true, StoreRetention: -1,
	}
}

func testPart() StoreJob {
	return StoreJob{
		Request: "r", TokenLen: 48, CompletedTokens: 50, PromptTokens: 40, PrefillEnd: 40, HashLen: 32, FirstHash: 1, Hashes: make([]byte, 64),
		FirstBlock: []int{1}, Blocks: [][]byte{{1, 0, 0, 0, 2, 0, 0, 0}}, BoundaryPuts: [][3]int{{0, 1, 16}, {0, 2, 32}}, Label: Label{SaltTag: "s"},
	}
}

func messages() []any {
	spec := testSpec()
	return []any{
		&Hello{Type: TypeHello, Protocol: 1, Role: RoleWorkerShim, PID: 3, Epoch: 1 << 62, Version: "v"},
		&Welcome{Type: TypeWelcome, Protocol: 1, Daemon: "mooncake-worker", Session: 7, Autostarted: true},
		&Error{Type: TypeError, Code: CodeMalformed, Message: "no", Job: 4},
		testRegister(),
		&Registered{Type: TypeRegistered, NamespaceDigest: "ab", StoreReady: true},
		&StoreBatch{Type: TypeStore, Job: 1, Epoch: 2, Event: -1, Parts: []StoreJob{testPart(), {
			Request: "puts alone", PrefillEnd: 40, FirstBlock: []int{0}, Blocks: [][]byte{{}},
			Label: Label{SaltTag: "s", TTLSeconds: 60, Pin: 1}, BoundaryPuts: [][3]int{{0, 2, 48}}, Controls: Controls{MaxOffloadTokens: new(int)},
		}}},
		&LoadJob{Type: TypeLoad, Job: 1<<63 - 1, Request: "r", TokenLen: 32, LocalTokens: 16, HashLen: 32, Hashes: make([]byte, 64),
			Blocks: [][]byte{{1, 0, 0, 0, 2, 0, 0, 0}}, TailBoundaries: [][2]int{{0, 32}}},
		&Cancel{Type: TypeCancel, Jobs: []uint64{1, 2}},
		&Finished{Type: TypeFinished, Requests: []string{"a"}, Preempted: []string{"b"}},
		&Result{Type: TypeResult, Job: 1, Kind: TypeLoad, Status: StatusFailed, Reason: "x", Failed: []byte{1, 0, 0, 0},
			Asked: 3, Micros: 5, AskMicros: 1, MoveMicros: 3},
		&Result{Type: TypeResult, Job: 1, Kind: TypeStore, Status: StatusFailed, Reason: "x", Incomplete: []byte{1, 0, 0, 0}},
		&Ping{Type: TypePing, Seq: 1}, &Pong{Type: TypePong, Seq: 1, StoreReady: true},
		&Engine{Type: TypeEngine, Namespace: spec, LookupPath: "/p", LookupEngine: "e"},
		&LookupChannel{Type: TypeLookupChannel, FDs: 1},
		&Generation{Type: TypeGeneration, Generation: 1<<63 | 5},
		&Segments{Type: TypeSegments, FDs: 1, Segments: []SegmentInfo{{UUID: "u", Bytes: 1}}},
		&After{Type: TypeAfter, Event: 3},
		&Ahead{Type: TypeAhead, Job: 7}, &Final{Type: TypeFinal, Jobs: []uint64{7, 8}},
		&Declare{Type: TypeDeclare, Client: 1, UUID: "u", Reads: []uint64{1}, Puts: []uint64{2}},
		&Registered{Type: TypeRegistered, NamespaceDigest: "ab", Generation: 1<<63 | 5, EventsRefused: true, Ahead: true},
		&Registered{Type: TypeRegistered, StoreReady: true, Offers: true},
		&Follow{Type: TypeFollow, Engine: "e", ShardByGroup: []int{0, 3}, HeldShards: 2},
		&Offer{Type: TypeOffer, Engine: "e", Request: "r", Namespace: 3, Generation: 1<<63 | 5, Removals: 7, LifeMS: 1000,
			Items: AppendOffered(nil, &Offered{Group: 1, Shard: 3, Bytes: 256, Checksum: 5, Ref: 1 << 40, Offset: 1 << 33, Hash: kv.Hash{1, 2}})},
		&Decline{Type: TypeDecline, Refs: []uint64{1, 1 << 63}},
	}
}

func TestEveryMessageSurvivesTheStream(t *testing.T) {
	var stream []byte
	for _, m := range messages() {
		var err error
		if stream, err = AppendFrame(stream, m); err != nil {
			t.Fatal(err)
		}
	}
	r := NewFrameReader(iotest.OneByteReader(bytes.NewReader(stream)))
	for _, want := range messages() {
		frame, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		got, err := Decode(frame)
		if err != nil {
			t.Fatalf("%T: %v", want, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("at the end: %v, want EOF", err)
	}
}

func TestFrameReaderLimits(t *testing.T) {
	frame := func(n uint32, body int) io.Reader {
		return bytes.NewReader(append(binary.BigEndian.AppendUint32(nil, n), make([]byte, body)...))
	}
	for name, c := range map[string]struct {
		r    io.Reader
		want error
	}{
		"empty":             {frame(0, 0), nil},
		"largest":           {frame(1000, 1000), nil},
		"too long":          {frame(1001, 1001), ErrFrameTooLong},
		"length overflows":  {frame(1<<32-1, 9), ErrFrameTooLong},
		"ends in the body":  {frame(10, 9), io.ErrUnexpectedEOF},
		"ends before it":    {frame(10, 0), io.ErrUnexpectedEOF},
		"ends in the head":  {bytes.NewReader([]byte{0, 0}), io.ErrUnexpectedEOF},
		"ends between":      {bytes.NewReader(nil), io.EOF},
		"the stream errors": {iotest.ErrReader(io.ErrClosedPipe), io.ErrClosedPipe},
	} {
		if _, err := NewFrameReaderLimit(c.r, 1000).Next(); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}

// A length that nothing follows must not cost its size in memory.
func TestClaimedLengthIsNotAllocated(t *testing.T) {
	r := NewFrameReader(bytes.NewReader([]byte{0x04, 0, 0, 0, 1, 2, 3}))
	if _, err := r.Next(); err != io.ErrUnexpectedEOF {
		t.Fatal(err)
	}
	if cap(r.buf) > growBytes {
		t.Errorf("%d bytes allocated for 3", cap(r.buf))
	}
}

// A reader that went past a frame would take the next frame's descriptors.
func TestFrameReaderStopsAtTheEnd(t *testing.T) {
	stream := bytes.NewReader([]byte{0, 0, 0, 1, 0x80, 0, 0, 0, 1, 0x80})
	if _, err := NewFrameReader(stream).Next(); err != nil {
		t.Fatal(err)
	}
	if stream.Len() != 5 {
		t.Errorf("%d bytes left, want 5", stream.Len())
	}
}

// edit encodes a message with some fields replaced.
func edit(t testing.TB, msg any, fields map[string]any) []byte {
	t.Helper()
	plain, err := msgpack.Marshal(msg)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := msgpack.Unmarshal(plain, &m); err != nil {
		t.Fatal(err)
	}
	for k, v := range fields {
		m[k] = v
	}
	out, err := msgpack.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestDecodeRefuses(t *testing.T) {
	storeJob, loadJob, register := messages()[5], messages()[6], messages()[3]
	deep := append([]byte{0x81, 0xa1, 'x'}, bytes.Repeat([]byte{0x91}, 1<<20)...)
	many := binary.BigEndian.AppendUint32([]byte{0x81, 0xa1, 'x', 0xdd}, maxValues+1)
	many = append(many, make([]byte, maxValues+1)...)
	for name, c := range map[string]struct {
		frame []byte
		job   uint64
		text  string
	}{
		"nothing":               {nil, 0, "end inside"},
		"no map":                {[]byte{0x01}, 0, "is a map"},
		"no type":               {[]byte{0x80}, 0, "unknown type"},
		"unknown type":          {edit(t, &Ping{Type: "boo"}, nil), 0, "unknown type"},
		"type of a wrong type":  {edit(t, &Ping{}, map[string]any{"t": 1}), 0, ""},
		"extension":             {[]byte{0x81, 0xa1, 'x', 0xd4, 1, 1}, 0, "unknown kind"},
		"deep nesting":          {append(deep, 0xc0), 0, "nested deeper"},
		"many values":           {many, 0, "more than"},
		"false length":          {[]byte{0x81, 0xa1, 't', 0xdb, 0xff, 0xff, 0xff, 0xff}, 0, "end inside"},
		"bytes behind":          {append(edit(t, &Ping{Type: TypePing}, nil), 0), 0, "after the map"},
		"job 0":                 {edit(t, storeJob, map[string]any{"job": 0}), 0, "job id"},
		"job with the top bit":  {edit(t, storeJob, map[string]any{"job": uint64(1) << 63}), 0, "job id"},
		"negative tokens":       {edit(t, loadJob, map[string]any{"token_len": -1}), 1<<63 - 1, "token count"},
		"huge tokens":           {edit(t, loadJob, map[string]any{"token_len": 1 << 40}), 1<<63 - 1, "token count"},
		"hashes do not fit":     {edit(t, storeJob, map[string]any{"hashes": make([]byte, 63)}), 1, "hash"},
		"long hashes":           {edit(t, storeJob, map[string]any{"hash_len": 64}), 1, "hash"},
		"hashes of -1 bytes":    {edit(t, storeJob, map[string]any{"hashes": []byte{}, "hash_len": -1}), 1, "hash length"},
		"hashes that wrap":      {edit(t, storeJob, map[string]any{"hashes": []byte{}, "hash_len": 1 << 62, "rows": rows(colHashes, 4)}), 1, "hash length"},
		"hashes without length": {edit(t, storeJob, map[string]any{"hashes": []byte{}, "hash_len": 0}), 1, "part 0: hashes"},
		"hashes left over":      {edit(t, storeJob, map[string]any{"hashes": make([]byte, 96)}), 1, "32 bytes of hashes and 0 of blocks are left"},
		"too few hashes":        {edit(t, storeJob, map[string]any{"hashes": make([]byte, 32)}), 1, "part 0: hashes"},
		"too few blocks":        {edit(t, storeJob, map[string]any{"blocks": make([]byte, 4)}), 1, "part 0: blocks"},
		"odd blocks":            {edit(t, storeJob, map[string]any{"blocks": make([]byte, 9)}), 1, "multiple of 4"},
		"rows of other groups":  {edit(t, storeJob, map[string]any{"groups": 2}), 1, "rows have"},
		"groups of no number":   {edit(t, storeJob, map[string]any{"groups": -1}), 1, "groups"},
		"parts without rows":    {edit(t, storeJob, map[string]any{"reqs": make([]string, MaxParts+1)}), 1, "parts, at most"},
		"tokens beyond":         {edit(t, storeJob, map[string]any{"rows": rows(0, 1<<31+1)}), 1, "token count"},
		"counts that overflow":  {edit(t, storeJob, map[string]any{"rows": rows(colHashes, 1<<32-1)}), 1, "part 0: hashes"},
		"a limit beyond":        {edit(t, storeJob, map[string]any{"rows": rows(colMaxOffload, 1<<32-2)}), 1, "token count"},
		"no such label":         {edit(t, storeJob, map[string]any{"labels": []Label{}}), 1, "label 0 of 0"},
		"pin of no kind":        {edit(t, storeJob, map[string]any{"labels": []Label{{Pin: 3}, {}}}), 1, "pin 3"},
		"ttl beyond":            {edit(t, storeJob, map[string]any{"labels": []Label{{TTLSeconds: 1 << 32}, {}}}), 1, "time to live"},
		"puts of no part":       {edit(t, storeJob, map[string]any{"puts": []byte{2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 16, 0, 0, 0}}), 1, "part 2 of 2"},
		"odd puts":              {edit(t, storeJob, map[string]any{"puts": make([]byte, 15)}), 1, "multiple of 16"},
		"odd block table":       {edit(t, loadJob, map[string]any{"blocks": [][]byte{{1, 2, 3}}}), 1<<63 - 1, "multiple of 4"},
		"table of a wrong type": {edit(t, loadJob, map[string]any{"blocks": 4}), 1<<63 - 1, ""},
		"boundary put of null":  {edit(t, storeJob, map[string]any{"puts": make([]byte, 16)}), 1, "boundary put"},
		"tail boundary group":   {edit(t, loadJob, map[string]any{"tails": [][2]int{{64, 16}}}), 1<<63 - 1, "tail boundary"},
		"long request":          {edit(t, loadJob, map[string]any{"req": strings.Repeat("r", maxText+1)}), 1<<63 - 1, "text"},
		"one block":             {edit(t, register, map[string]any{"num_blocks": 1}), 0, "num_blocks"},
		"no strides":            {edit(t, register, map[string]any{"put_stride": []int{}}), 0, "put_stride"},
		"phase beyond stride":   {edit(t, register, map[string]any{"put_phase": []int{1}}), 0, "put_phase"},
		"shard beyond shards":   {edit(t, register, map[string]any{"shard_by_group": []int{1}}), 0, "shard"},
		"no job slots":          {edit(t, register, map[string]any{"job_slots": 0}), 0, "job_slots"},
		"board out of range":    {edit(t, register, map[string]any{"job_board": 2}), 0, "job_board"},
		"many descriptors":      {edit(t, register, map[string]any{"fds": 254}), 0, "descriptors"},
		"retention below dense": {edit(t, register, map[string]any{"store_retention": -2}), 0, "store_retention"},
		"bad namespace":         {edit(t, register, map[string]any{"namespace": kv.NamespaceSpec{}}), 0, "model"},
	} {
		msg, err := Decode(c.frame)
		var bad *MalformedError
		if !errors.As(err, &bad) {
			t.Errorf("%s: got %v, %v, want a MalformedError", name, msg, err)
			continue
		}
		if bad.Job != c.job || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: job %d, %q; want job %d and %q", name, bad.Job, err, c.job, c.text)
		}
	}
}

// rows are those of the batch of messages, of one group, with one value changed.
func rows(column int, value uint32) []byte {
	first := []uint32{48, 50, 40, 40, noLimit, 0, 1, 2, 1, 2}
	first[column] = value
	var out []byte
	for _, n := range append(first, 0, 0, 0, 40, 0, 1, 0, 0, 0, 0) {
		out = binary.LittleEndian.AppendUint32(out, n)
	}
	return out
}

// Parts that do not go together must not be sent as if they did.
func TestEncodeRefusesPartsThatDiffer(t *testing.T) {
	for name, change := range map[string]func(*StoreJob){
		"tables": func(p *StoreJob) { p.Blocks = append(p.Blocks, nil) },
		"hashes": func(p *StoreJob) { p.HashLen = 16 },
	} {
		other := testPart()
		change(&other)
		if _, err := AppendFrame(nil, &StoreBatch{Type: TypeStore, Job: 1, Parts: []StoreJob{testPart(), other}}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestUnknownFieldsAreIgnored(t *testing.T) {
	got, err := Decode(edit(t, &Ping{Type: TypePing, Seq: 5}, map[string]any{"later": []int{1, 2}}))
	if err != nil || !reflect.DeepEqual(got, &Ping{Type: TypePing, Seq: 5}) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func FuzzDecodeFrame(f *testing.F) {
	for _, m := range messages() {
		frame, err := AppendFrame(nil, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(frame)
	}
	f.Add([]byte{0, 0, 0, 3, 0x81, 0xa1, 0x74})
	for _, hashLen := range []any{-1, 0, 1 << 62} {
		bad := edit(f, messages()[5], map[string]any{"hashes": []byte{}, "hash_len": hashLen})
		f.Add(append(binary.BigEndian.AppendUint32(nil, uint32(len(bad))), bad...))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		r := NewFrameReaderLimit(bytes.NewReader(stream), 1<<16)
		for {
			frame, err := r.Next()
			if err != nil {
				return
			}
			msg, err := Decode(frame)
			if err != nil {
				var bad *MalformedError
				if !errors.As(err, &bad) {
					t.Fatalf("an error of type %T: %v", err, err)
				}
				continue
			}
			if reg, ok := msg.(*Register); ok {
				_ = reg.CheckGeometry() // must not panic
			}
			// What decodes encodes, and decodes to the same.
			again, err := AppendFrame(nil, msg)
			if err != nil {
				t.Fatal(err)
			}
			if second, err := Decode(again[headerBytes:]); err != nil || reflect.TypeOf(second) != reflect.TypeOf(msg) {
				t.Fatalf("again: %v, %v", second, err)
			}
		}
	})
}
