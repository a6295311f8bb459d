package daemon

import (
	"github.com/mooncake-sidecar/sidecar/lookupd"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// catalog is the embedded store's master as lookupd needs it.
type catalog struct{ *embedded.Master }

var _ lookupd.Catalog = catalog{}

// View implements lookupd.Catalog.
func (c catalog) View(ns store.NamespaceID) lookupd.View { return c.Master.View(ns) }
