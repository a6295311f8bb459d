package connector

import "github.com/mooncake-sidecar/sidecar/internal/kv"

// ProtocolVersion is the version both sides must speak.
const ProtocolVersion = 3

// MaxFrameBytes bounds one frame. The largest honest one is the store job of a
// step that saves million-token requests again: 62,500 hashes of 32 bytes and as
// many block ids each.
const MaxFrameBytes = 64 << 20

// Roles of a hello.
const (
	RoleWorkerShim    = "worker_shim"    // vLLM worker process -> mooncake-worker
	RoleSchedulerShim = "scheduler_shim" // vLLM engine core -> mooncake-lookupd
	RoleStoreClient   = "store_client"   // mooncake-worker -> mooncake-lookupd
	RoleRecovery      = "recovery"       // a new mooncake-lookupd -> mooncake-worker
	RoleProbe         = "probe"          // anyone: hello, welcome, ping, no registration
)

// Message names, the "t" of a frame.
const (
	TypeHello         = "hello"
	TypeWelcome       = "welcome"
	TypeError         = "error"
	TypeRegister      = "register"
	TypeRegistered    = "registered"
	TypeStore         = "store"
	TypeLoad          = "load"
	TypeCancel        = "cancel"
	TypeFinished      = "finished"
	TypeResult        = "result"
	TypePing          = "ping"
	TypePong          = "pong"
	TypeEngine        = "engine"
	TypeLookupChannel = "lookup_channel"
	TypeGeneration    = "generation"
	TypeSegments      = "segments"
	TypeDeclare       = "declare"
	TypeAfter         = "after"
	TypeAhead         = "ahead"
	TypeFinal         = "final"
	TypeFollow        = "follow"
	TypeOffer         = "offer"
	TypeDecline       = "decline"
)

// Error codes of an Error message.
const (
	CodeMalformed      = "malformed"       // the frame does not parse or a field is out of range
	CodeVersion        = "version"         // protocol versions differ
	CodeNotAllowed     = "not_allowed"     // peer credentials, or a message out of order
	CodeBadDescriptor  = "bad_descriptor"  // a descriptor is missing, of the wrong size or not sealed
	CodeSocketTaken    = "socket_taken"    // the lookup socket path belongs to a live server
	CodeWrongNamespace = "wrong_namespace" // the namespace can't be served, or is not the one registered
	CodeUnsupported    = "unsupported"     // a kind of group, layout or device this build does not know
	CodeStoreTooSmall  = "store_too_small" // one shard is larger than the store can place
	CodeUnavailable    = "unavailable"     // try again later
)

// Envelope is read first to learn a frame's type.
type Envelope struct {
	Type string `msgpack:"t"`
	FDs  int    `msgpack:"fds,omitempty"`
}

// Hello opens a session.
type Hello struct {
	Type     string `msgpack:"t"`
	Protocol int    `msgpack:"protocol"`
	Role     string `msgpack:"role"`
	PID      int    `msgpack:"pid"`
	// EngineID is vLLM's engine_id, empty for daemons.
	EngineID string `msgpack:"engine_id"`
	// Epoch identifies the engine process: it grows with every start. What an
	// older epoch says is ignored.
	Epoch uint64 `msgpack:"epoch"`
	// Version is the peer's own version, for logs.
	Version string `msgpack:"version"`
}

// Welcome answers Hello.
type Welcome struct {
	Type     string `msgpack:"t"`
	Protocol int    `msgpack:"protocol"`
	// Daemon is "mooncake-worker" or "mooncake-lookupd".
	Daemon  string `msgpack:"daemon"`
	Version string `msgpack:"version"`
	PID     int    `msgpack:"pid"`
	// Session numbers the session for the daemon's life.
	Session uint64 `msgpack:"session"`
	// Autostarted: a shim started the daemon, so a shim may kill it when it does
	// not acknowledge a cancel.
	Autostarted bool `msgpack:"autostarted"`
}

// Error ends a conversation, or answers one message when Job or Reply says so.
type Error struct {
	Type string `msgpack:"t"`
	Code string `msgpack:"code"`
	// Message says what, where and what to do.
	Message string `msgpack:"message"`
	// Job is the job a malformed store or load frame named, 0 for none.
	Job uint64 `msgpack:"job,omitempty"`
}

// KVSegment is one strided run of a shard's bytes in a KV region: block i's
// piece begins at Offset + i*BlockStride and is Bytes long. A shard is its
// segments in order, one after the other.
type KVSegment struct {
	Group int `msgpack:"group"`
	// Shard counts the shards that the rank holds of the group, from 0.
	Shard       int    `msgpack:"shard,omitempty"`
	Region      int    `msgpack:"region"`
	Offset      uint64 `msgpack:"offset"`
	BlockStride uint64 `msgpack:"block_stride"`
	Bytes       uint64 `msgpack:"bytes"`
}

// KVRegion is one allocation of KV memory. How it is reached depends on Kind.
type KVRegion struct {
	// Kind is "memfd" (FD counts into the frame's descriptors), "process_vm"
	// (Address in the process PID of the hello), "cuda_ipc" (Handle), "cuda_vmm"
	// (Chunks, whose descriptors begin at FD) or "cuda_fabric" (Chunks, whose handles
	// are in Handle).
	Kind string `msgpack:"kind"`
	FD   int    `msgpack:"fd"`
	// Address of the cuda kinds is where the region begins in the allocation, or in
	// the chunks.
	Address uint64 `msgpack:"address"`
	Bytes   uint64 `msgpack:"bytes"`
	// Handle is the CUDA IPC handle of the allocation that the region lies in, or the
	// fabric handles of its chunks, one behind the other.
	Handle []byte `msgpack:"handle,omitempty"`
	// Chunks are the lengths of the physical chunks that the region lies in, one
	// behind the other.
	Chunks []uint64 `msgpack:"chunks,omitempty"`
}

// Register tells mooncake-worker what it needs to know of one engine rank. Its
// descriptors are the regions' and, last, the job board's.
type Register struct {
	Type      string           `msgpack:"t"`
	FDs       int              `msgpack:"fds"`
	Namespace kv.NamespaceSpec `msgpack:"namespace"`
	// Device is "host" or "cuda".
	Device string `msgpack:"device"`
	// NumBlocks bounds block ids; block 0 is the null block.
	NumBlocks int `msgpack:"num_blocks"`
	// ShardByGroup is the number of this rank's first shard in each group, and
	// HeldShards how many from there on are its own; 0 means one. A rank holds more
	// where engines with more ranks share a chunk's shards.
	ShardByGroup []int `msgpack:"shard_by_group"`
	HeldShards   int   `msgpack:"held_shards,omitempty"`
	// PutStride and PutPhase by group: of ranks that hold byte-identical shards,
	// a rank puts only the chunks whose index is PutPhase modulo PutStride.
	PutStride []int       `msgpack:"put_stride"`
	PutPhase  []int       `msgpack:"put_phase"`
	Regions   []KVRegion  `msgpack:"regions"`
	Segments  []KVSegment `msgpack:"segments"`
	// JobBoard is the index of the board's descriptor; JobSlots its u64 words.
	JobBoard int `msgpack:"job_board"`
	JobSlots int `msgpack:"job_slots"`
	// LookupEngine is the name under which lookupd knows the engine's leases.
	LookupEngine string `msgpack:"lookup_engine"`
	// Verify asks for checksums to be compared on load.
	Verify bool `msgpack:"verify"`
	// StoreRetention is before which boundaries a sliding-window group stores a
	// window: 0 as the engine says (RetentionTokens of the namespace), -1 before
	// every scheduler block, else before every so many tokens, a multiple of the
	// scheduler block. It changes what is stored and not what bytes mean, so that
	// it is no part of the namespace.
	StoreRetention int `msgpack:"store_retention,omitempty"`
	// DeviceUUID is the GPU's, 16 bytes; empty for the device "host".
	DeviceUUID []byte `msgpack:"device_uuid,omitempty"`
	// Events are the CUDA IPC handles of the engine's ring of events, which After
	// counts into.
	Events [][]byte `msgpack:"events,omitempty"`
}

// After says what the jobs that follow wait for before a byte of the KV cache is
// read or written: the event of that number, as it was recorded last; -1: nothing.
// The engine has recorded it before it sends this. One that it records again
// meanwhile is waited for again, which is late but never early.
type After struct {
	Type  string `msgpack:"t"`
	Event int    `msgpack:"event"`
}

// Ahead says that the store job of that id, which follows, comes before the bytes of
// its blocks are there: its chunks may be planned and given places, but nothing is
// read until Final names it.
type Ahead struct {
	Type string `msgpack:"t"`
	Job  uint64 `msgpack:"job"`
}

// Final says that the bytes of store jobs that came ahead are there, or will be when
// what the last After names has happened. A job that has ended meanwhile is ignored.
type Final struct {
	Type string   `msgpack:"t"`
	Jobs []uint64 `msgpack:"jobs"`
}

// Registered answers Register and Engine.
type Registered struct {
	Type string `msgpack:"t"`
	// NamespaceDigest is hexadecimal, for logs and for comparison between ranks.
	NamespaceDigest string `msgpack:"namespace_digest"`
	// LookupPath is the bound lookup socket (answer to Engine only).
	LookupPath string `msgpack:"lookup_path"`
	// StoreReady: mooncake-worker has a session with the store. Without one jobs
	// are answered at once: stores dropped, loads failed.
	StoreReady bool `msgpack:"store_ready"`
	// Generation is the namespace's, see Generation; mooncake-worker may not know
	// it yet.
	Generation uint64 `msgpack:"generation"`
	// LookupStride: lookups may name their hashes by every so manieth (lookup3); 0:
	// they name all (answer to Engine only).
	LookupStride int `msgpack:"lookup_stride,omitempty"`
	// EventsEndpoint is where this machine's processes hear of the namespace's
	// chunks, under EventsTopic; EventsReplay is where they ask for what they have
	// missed. Empty: nothing is published. See docs/events.md. (Answer to Engine only.)
	EventsEndpoint string `msgpack:"events_endpoint,omitempty"`
	EventsReplay   string `msgpack:"events_replay,omitempty"`
	EventsTopic    string `msgpack:"events_topic,omitempty"`
	// EventsRefused: the registration's events can't be opened here. The engine holds
	// each job back until its own event has happened, and names none. (Answer to
	// Register only.)
	EventsRefused bool `msgpack:"events_refused,omitempty"`
	// Ahead: store jobs may come ahead of their bytes (answer to Register only).
	Ahead bool `msgpack:"ahead,omitempty"`
	// Offers: Follow is understood (answer to Declare only).
	Offers bool `msgpack:"offers,omitempty"`
}

// Generation tells an engine that its namespace was reset, by whomever. What the
// engine computes from then on is of this generation, and what it had begun
// before is of none: a store job names the generation that its bytes are of, and
// is stored under no other. Generations are the store's names
// (store.Namespace.ResetEpoch): equal or not, and within one segment (the upper 32
// bits) growing.
type Generation struct {
	Type       string `msgpack:"t"`
	Generation uint64 `msgpack:"generation"`
}

// LoadJob asks for a request's external hit to be loaded into its blocks. All
// loads of a request are one job.
type LoadJob struct {
	Type    string `msgpack:"t"`
	Job     uint64 `msgpack:"job"`
	Epoch   uint64 `msgpack:"epoch"`
	Request string `msgpack:"req"`
	// TokenLen is the hit length; LocalTokens of it are in the engine already.
	TokenLen    int    `msgpack:"token_len"`
	LocalTokens int    `msgpack:"local_tokens"`
	HashLen     int    `msgpack:"hash_len"`
	Hashes      []byte `msgpack:"hashes"`
	// Blocks is the block table by store group: little-endian u32.
	Blocks [][]byte `msgpack:"blocks"`
	// TailBoundaries are the lookup's (store group, tokens) pairs.
	TailBoundaries [][2]int `msgpack:"tails,omitempty"`
	SaltTag        string   `msgpack:"salt_tag,omitempty"`
	Controls       Controls `msgpack:"controls,omitempty"`
}

// Controls are per-request wishes from kv_transfer_params; a nil pointer means
// no wish. The names are those of vLLM's offloading connector.
type Controls struct {
	MaxLoadTokens    *int `msgpack:"max_load_tokens,omitempty"`
	MaxOffloadTokens *int `msgpack:"max_offload_tokens,omitempty"`
}

// Cancel asks for the named jobs to be given up. The canceller has already
// written their words on the job board. Each is answered by its Result.
type Cancel struct {
	Type string   `msgpack:"t"`
	Jobs []uint64 `msgpack:"jobs"`
}

// Finished retires requests: finished ids once their jobs are through,
// preempted ids at once.
type Finished struct {
	Type      string   `msgpack:"t"`
	Requests  []string `msgpack:"reqs"`
	Preempted []string `msgpack:"preempted,omitempty"`
}

// Statuses of a Result.
const (
	StatusOK        = "ok"
	StatusFailed    = "failed"    // some of the job was not done; Failed has the blocks of a load
	StatusDropped   = "dropped"   // nothing was tried (queue full, no store)
	StatusCancelled = "cancelled" // the acknowledgement of a cancel
)

// Result is the one answer to a job. After it the daemon touches none of the
// job's blocks.
type Result struct {
	Type string `msgpack:"t"`
	Job  uint64 `msgpack:"job"`
	// Kind is TypeStore or TypeLoad.
	Kind   string `msgpack:"kind"`
	Status string `msgpack:"status"`
	// Reason is one of a fixed set of words, empty when Status is ok.
	Reason string `msgpack:"reason,omitempty"`
	// Failed are the blocks of a load that do not hold verified bytes:
	// little-endian u32. Every block that was not positively loaded is here.
	Failed []byte `msgpack:"failed,omitempty"`
	// Incomplete are the numbers of a store job's parts that are not saved without
	// a hole: little-endian u32. Parts that are not here are saved if Status is ok
	// or failed. A failed job of which no part is saved lists all of them.
	Incomplete []byte `msgpack:"incomplete,omitempty"`
	// Chunks and Bytes were moved; Existing chunks were found stored already.
	Chunks   int   `msgpack:"chunks"`
	Existing int   `msgpack:"existing"`
	Bytes    int64 `msgpack:"bytes"`
	// Asked are the chunks that the store was asked for: to place those of a
	// store job, to give those of a load. What is neither moved nor existing of
	// them has failed. 0 when the job did not come that far.
	Asked int `msgpack:"asked,omitempty"`
	// Micros is the time from the frame's arrival to the result. AskMicros of it
	// the store took to answer, MoveMicros copying and publishing took; the rest
	// is waiting for the job's turns, and what a store rested.
	Micros     int64 `msgpack:"us"`
	AskMicros  int64 `msgpack:"ask_us,omitempty"`
	MoveMicros int64 `msgpack:"move_us,omitempty"`
}

// Ping is answered with Pong carrying the same Seq.
type Ping struct {
	Type string `msgpack:"t"`
	Seq  uint64 `msgpack:"seq"`
}

// Pong answers Ping.
type Pong struct {
	Type string `msgpack:"t"`
	Seq  uint64 `msgpack:"seq"`
	// StoreReady as in Registered.
	StoreReady bool `msgpack:"store_ready"`
}

// Engine registers an engine with mooncake-lookupd, which binds its lookup
// socket.
type Engine struct {
	Type      string           `msgpack:"t"`
	Namespace kv.NamespaceSpec `msgpack:"namespace"`
	// LookupPath is the file path of the ZMQ ipc endpoint, without "ipc://".
	LookupPath string `msgpack:"lookup_path"`
	// LookupEngine names the engine's leases.
	LookupEngine string `msgpack:"lookup_engine"`
	// LookupAsync: the engine asks again while an answer is pending. Otherwise it
	// waits LookupTimeoutMS for an answer, 0 for a time that it does not say.
	LookupAsync     bool `msgpack:"lookup_async,omitempty"`
	LookupTimeoutMS int  `msgpack:"lookup_timeout_ms,omitempty"`
}

// LookupChannel hands mooncake-lookupd one end of a connected stream socket, on
// which a registered engine asks what it would ask on its lookup socket. It takes
// the place of an earlier one. There is no answer but those on the channel.
type LookupChannel struct {
	Type string `msgpack:"t"`
	// FDs is 1.
	FDs int `msgpack:"fds"`
}

// SegmentInfo describes one store segment; its descriptor travels with the
// frame.
type SegmentInfo struct {
	// UUID is 32 hexadecimal digits, chosen when the segment was made.
	UUID  string `msgpack:"uuid"`
	Bytes uint64 `msgpack:"bytes"`
	// DataOffset is where the data area begins in the file.
	DataOffset uint64 `msgpack:"data_offset"`
	NUMANode   int    `msgpack:"numa_node"`
}

// Segments hands the store's segments to a store client, or, from a worker to a
// recovering lookupd, the segments it has kept alive. An empty list: none.
type Segments struct {
	Type     string        `msgpack:"t"`
	FDs      int           `msgpack:"fds"`
	Segments []SegmentInfo `msgpack:"segments"`
}

// Declare is a store client's statement after Segments: what it still holds in
// the segment of that UUID from an earlier session. An empty one says: nothing.
type Declare struct {
	Type string `msgpack:"t"`
	// Client identifies the client process across sessions: it is written into
	// the segment's session table.
	Client uint64 `msgpack:"client"`
	UUID   string `msgpack:"uuid"`
	// Reads are the references that are open.
	Reads []uint64 `msgpack:"reads"`
	// Puts are the tickets that are open.
	Puts []uint64 `msgpack:"puts"`
}
