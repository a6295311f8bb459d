package lookupd

import (
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/internal/wire"
)

func keyedMsg(path string, tp int) *connector.Engine {
	msg := engineMsg("m", path)
	msg.Namespace.KeySpace, msg.Namespace.TP, msg.Namespace.Groups[0].Shards = "m", tp, tp
	return msg
}

// Engines that would take each other's bytes for their own are refused by name;
// equal ones share their hits.
func TestOneKeySpaceIsOneGeometry(t *testing.T) {
	n := newNode(t, nil)
	register := func(name string, msg *connector.Engine) *peer {
		p := n.dial()
		p.hello(connector.RoleSchedulerShim, name, 100, 1)
		p.send(msg)
		return p
	}
	receive[connector.Registered](register("e1", keyedMsg("/l/one", 1)))
	receive[connector.Registered](register("e2", keyedMsg("/l/two", 1)))
	got := receive[connector.Error](register("e3", keyedMsg("/l/three", 2)))
	if got.Code != connector.CodeWrongNamespace || !strings.Contains(got.Message, "tp is 2 here and 1 there") || !strings.Contains(got.Message, "cache_prefix") {
		t.Errorf("%+v", got)
	}
	other := keyedMsg("/l/four", 2)
	other.Namespace.KeySpace = "tenant@m"
	receive[connector.Registered](register("e4", other))
	blob := prefix(1, 8)
	n.store(0, blob, 0, 8, kv.Present)
	for _, path := range []string{"/l/one", "/l/two"} {
		n.wantHit(path, wire.EncodeLookup(1000, 16, blob), 128)
	}
	n.wantHit("/l/four", wire.EncodeLookup(1000, 16, blob), 0)
}
