package api

import (
	"context"
	"io"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

// Indexer is what the API is in front of: conductor/indexer. It is safe for concurrent
// use.
type Indexer interface {
	// Register begins to follow a service; its fields were checked one by one. It does not
	// wait for the publisher. The same service again changes nothing; another one of its
	// key is contract.ErrConflict, and a *contract.FieldError says what can't be.
	Register(ctx context.Context, service contract.Service) (contract.Registered, error)
	// Unregister ends a service and forgets all that it told, or contract.ErrNotFound.
	Unregister(ctx context.Context, key contract.ServiceKey) error
	// Services are all that are registered, in the order of their keys.
	Services() []contract.Status
	// Query appends a match for each rank of each instance that is registered for the
	// query's tenant (or of the one that is asked for), also where it holds nothing or is of
	// another model; none when there is no such tenant or instance. Ranks of an instance
	// follow each other, instances and ranks are in order.
	Query(q *contract.Query, dst []contract.RankMatch) []contract.RankMatch
	// View shows what is known, with at most so many hashes.
	View(maxHashes int) contract.View
	Stats() contract.Stats
	// Unready says why the index is not to be asked yet, nil when it is: a snapshot is being
	// read, a static service has not answered.
	Unready() []string
	// Snapshot writes all that is known, with where each stream had got to, in the form
	// that another conductor begins with.
	Snapshot(ctx context.Context, to io.Writer) error
}
