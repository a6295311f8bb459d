package native

import (
	"fmt"
	"strings"

	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// Limits of how a put's objects are kept.
const (
	maxReplicas     = 64
	maxSegments     = 64
	maxSegmentBytes = 512
)

// CheckHow refuses what can't be said to a client.
func CheckHow(how *mooncake.Replication) error {
	if how.Replicas < 0 || how.Replicas > maxReplicas || len(how.PreferredSegments) > maxSegments {
		return fmt.Errorf("mooncake: put: %d replicas and %d preferred segments; at most %d and %d", how.Replicas, len(how.PreferredSegments), maxReplicas, maxSegments)
	}
	for _, name := range how.PreferredSegments {
		if name == "" || len(name) > maxSegmentBytes || strings.ContainsRune(name, 0) {
			return fmt.Errorf("mooncake: put: %.64q is no name of a segment; want host:port", name)
		}
	}
	return nil
}

// Expression returns an ECMAScript expression for keys that begin so.
func Expression(prefix string) string {
	var b strings.Builder
	b.WriteByte('^')
	for i := range len(prefix) {
		if strings.IndexByte(`.*+?()[]{}|^$\/`, prefix[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(prefix[i])
	}
	return b.String()
}

// MayGoOn returns the code of a transfer's answers that leaves open that the client
// still moves bytes, 0 when none does. Mooncake gives a transfer up without ending
// it; of a put that it gave up, the end of its books may be answered.
func MayGoOn(put bool, answers []mooncake.Answer) mooncake.Code {
	for _, a := range answers {
		if code := a.Code(); code == mooncake.CodeTransferFailed || put && code == mooncake.CodeNotFound {
			return code
		}
	}
	return 0
}

// Variable is one of the client's environment.
type Variable struct{ Name, Value string }

// Environment returns what the client has no arguments for. Variables that are set
// already are the operator's.
func Environment() []Variable {
	return []Variable{
		// A wrong address costs one attempt, and not twenty.
		{"MC_STORE_CLIENT_SETUP_RETRIES", "1"},
		// Or each transfer has a connection of its own.
		{"MC_TCP_ENABLE_CONNECTION_POOL", "1"},
		// A call with more slices than a queue holds waits for a minute and fails.
		{"MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER", "65535"},
		{"MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER", "65535"},
	}
}
