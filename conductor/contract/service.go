package contract

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// What callers of an index tell apart.
var (
	// ErrInvalid: the caller has to change what it says; see FieldError.
	ErrInvalid = errors.New("invalid")
	// ErrNotFound: there is no such service.
	ErrNotFound = errors.New("service not found")
	// ErrConflict: a service of that key is there and is another.
	ErrConflict = errors.New("conflicts with a registered service")
	// ErrLimit: there are as many as there may be.
	ErrLimit = errors.New("limit reached")
)

// FieldError says which field of a request is wrong. It is an ErrInvalid.
type FieldError struct {
	// Field is its name in the API (block_size).
	Field string
	// Reason is one of a few words that programs read: missing, invalid_type,
	// invalid_value, out_of_range, unknown_field, unsupported.
	Reason string
	// Text is for people.
	Text string
}

// Error implements error.
func (e *FieldError) Error() string { return e.Field + ": " + e.Text }

// Unwrap makes it an ErrInvalid.
func (e *FieldError) Unwrap() error { return ErrInvalid }

// Types of services. What is read is the same: events of either encoding are known by
// themselves. A type says what a rank's events may be about.
const (
	TypeVLLM     = "vLLM"
	TypeSGLang   = "SGLang"
	TypeMooncake = "Mooncake" // a store: mooncake_master, or our lookupd
)

// ParseType returns a type as we write it, whatever its letters' case.
func ParseType(text string) (string, bool) {
	for _, known := range [...]string{TypeVLLM, TypeSGLang, TypeMooncake} {
		if strings.EqualFold(text, known) {
			return known, true
		}
	}
	return "", false
}

// Service is one stream of KV events and what it says of its blocks.
type Service struct {
	// Endpoint is the publisher's, as ZMQ names it (tcp://10.0.0.1:5557), and
	// ReplayEndpoint that of its replay socket, "" for none.
	Endpoint, ReplayEndpoint string
	// Topic that is subscribed to; "" is all.
	Topic string
	// Type is one of the above.
	Type string
	// Model and LoRA are what requests name; LoRA "" is the base model.
	Model, LoRA string
	// Tenant is prefixindex.DefaultTenant where none was named.
	Tenant string
	// Instance is what answers name: where a router sends a request.
	Instance string
	// BlockTokens is the size of a block; 0 is learned from the events.
	BlockTokens int
	// Rank is the data-parallel rank; prefixindex.Shared for a store that all ranks load
	// from.
	Rank int
	// AdditionalSalt sets engines apart whose blocks can't be exchanged though all else is
	// equal (another quantisation).
	AdditionalSalt string
	// Hash is how the engine hashes, where its operator says so: it is what lets the
	// index check that an engine's hashes are what they should be.
	Hash HashProfile
}

// HashProfile is how an engine makes its hashes.
type HashProfile struct {
	// Algorithm in vLLM's words: sha256, sha256_cbor, xxhash, xxhash_cbor; "" is not told.
	Algorithm string
	// Seed is PYTHONHASHSEED of the engine as text; "" is unset. "random" can't be
	// recomputed.
	Seed string
}

// Key returns what names the service.
func (s *Service) Key() ServiceKey { return ServiceKey{s.Instance, s.Tenant, s.Rank} }

// ServiceKey names a service.
type ServiceKey struct {
	Instance, Tenant string
	Rank             int
}

// String returns the key as Mooncake Conductor writes it: instance|tenant|rank.
func (k ServiceKey) String() string {
	return k.Instance + "|" + k.Tenant + "|" + strconv.Itoa(k.Rank)
}

// Ways are how a service came to be; there may be several.
type Ways uint8

// The ways.
const (
	// Called: somebody registered it.
	Called Ways = 1 << iota
	// Found: an engine of the configuration told of it.
	Found
	// Configured: it is itself in the configuration.
	Configured
)

// Registered is what came of a registration.
type Registered struct {
	// Existed: the same service was registered already, and nothing changed.
	Existed bool
	// Warnings are what its operator should know (two engines on one port).
	Warnings []string
}

// State says how much of a service's events is known.
type State uint8

// The states.
const (
	// Connecting: nothing was heard yet, and no replay was answered.
	Connecting State = iota
	// Complete: all events since the publisher began, or since a point at which it held
	// nothing.
	Complete
	// Incomplete: events are missing. What is said to be there was there, and more may be.
	Incomplete
	// Silent: the publisher was heard and is not any more. What is known of it counts
	// until its service is unregistered or the publisher begins again.
	Silent
)

// String returns the state in the API's words.
func (s State) String() string {
	switch s {
	case Connecting:
		return "connecting"
	case Complete:
		return "complete"
	case Incomplete:
		return "incomplete"
	case Silent:
		return "silent"
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Status is how a service does.
type Status struct {
	Service
	State State
	// Since is the sequence number from which on all is known, where State is Incomplete
	// and something is.
	Since uint64
	// Next is the sequence number that is awaited; 0 with Connecting.
	Next uint64
	// Heard is when the last message came; zero for never.
	Heard time.Time
	// Reason says in words what is wrong, "" for nothing: unreachable, replay refused,
	// hashes that are not those of the profile.
	Reason string
	// Ways are how it came to be.
	Ways Ways
	// Batches were applied, Gaps found, Restarts of the publisher seen and Rejected events
	// passed over, since it was registered.
	Batches, Gaps, Restarts, Rejected uint64
	// Lost are gaps that no replay has filled. Replays were asked for, of which Unanswered
	// were given up; Overrun messages came faster than they were taken, and are asked for again.
	Lost, Replays, Unanswered, Overrun uint64
	// Live batches came as they were published, and Delay is how old they were then, all
	// together, by the publisher's clock and ours.
	Live  uint64
	Delay time.Duration
	// Blocks are what its source counted.
	Blocks prefixindex.Stats
	// Hashing is how the engine was found to make its hashes ("sha256, seed unset";
	// "unknown"), "" as long as it has told of none.
	Hashing string
	// Warnings are what its operator should know.
	Warnings []string
}

// Add adds another one's counters to its own. Nothing else of it changes.
func (s *Status) Add(other *Status) {
	s.Batches += other.Batches
	s.Gaps += other.Gaps
	s.Restarts += other.Restarts
	s.Rejected += other.Rejected
	s.Lost += other.Lost
	s.Replays += other.Replays
	s.Unanswered += other.Unanswered
	s.Overrun += other.Overrun
	s.Live += other.Live
	s.Delay += other.Delay
	b, add := &s.Blocks, &other.Blocks
	b.Stored += add.Stored
	b.Removed += add.Removed
	b.Again += add.Again
	b.Reported += add.Reported
	b.Unplaced += add.Unplaced
	b.Unknown += add.Unknown
	b.Dropped += add.Dropped
	b.Ignored += add.Ignored
	b.Clears += add.Clears
}
