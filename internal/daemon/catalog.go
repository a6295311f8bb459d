package daemon

import (
	"errors"
	"fmt"

	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/lookupd"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// catalog is the embedded store's master as lookupd needs it.
type catalog struct{ *embedded.Master }

var _ lookupd.Catalog = catalog{}

// OpenNamespace implements lookupd.Catalog.
func (c catalog) OpenNamespace(spec *kv.NamespaceSpec) (store.Namespace, error) {
	ns, err := c.Master.OpenNamespace(spec)
	if errors.Is(err, store.ErrShardTooLarge) {
		return ns, fmt.Errorf("%w: %w", lookupd.ErrStoreTooSmall, err)
	}
	return ns, err
}

// View implements lookupd.Catalog.
func (c catalog) View(ns store.NamespaceID) lookupd.View { return c.Master.View(ns) }
