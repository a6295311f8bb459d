package config

import (
	"net"
	"strconv"
	"strings"
	"time"
)

// Mooncake are the settings of a Mooncake Store cluster below the node's store.
type Mooncake struct {
	// Store is StoreEmbedded, the default, or StoreMooncake: the node's store with a
	// cluster below it.
	Store string
	// StorePython is the interpreter with Mooncake's wheel, a path or a name in PATH.
	// Default python3.
	StorePython string
	// Library is Mooncake's C library, which is used in the daemon instead of the
	// wheel in a process beside it; empty: it is not.
	Library string
	// ConfigPath is the in-tree connector's JSON file; empty: MOONCAKE_CONFIG_PATH
	// names it.
	ConfigPath string
	// Write is WriteThrough, the default, or WriteBack.
	Write string
	// Reset is ResetNode, the default, or ResetCluster.
	Reset string
	// Replicas is how many copies the cluster keeps of what this node stores. Default
	// 1.
	Replicas int
	// Lease is how long the cluster's master leases what was asked for. Default 10s.
	Lease time.Duration
	// Events is where the cluster's master publishes its KV events; empty: they are not
	// followed.
	Events string
}

// Values of Mooncake.Store, Write and Reset.
const (
	StoreEmbedded = "embedded"
	StoreMooncake = "mooncake"
	// WriteThrough: chunks go to the cluster as soon as they are whole.
	WriteThrough = "through"
	// WriteBack: chunks go there when memory needs their room.
	WriteBack = "back"
	// ResetNode: a reset leaves the cluster's objects to the others that use them, and
	// this node without the cluster for the model.
	ResetNode = "node"
	// ResetCluster: a reset removes the model's objects from the cluster.
	ResetCluster = "cluster"
)

const (
	defaultPython = "python3"
	maxReplicas   = 64
	defaultLease  = 10 * time.Second
	maxLease      = time.Hour
)

func (m *Mooncake) setDefaults() {
	for _, d := range []struct {
		to    *string
		value string
	}{{&m.Store, StoreEmbedded}, {&m.StorePython, defaultPython}, {&m.Write, WriteThrough}, {&m.Reset, ResetNode}} {
		if *d.to == "" {
			*d.to = d.value
		}
	}
	if m.Replicas == 0 {
		m.Replicas = 1
	}
	if m.Lease == 0 {
		m.Lease = defaultLease
	}
	if m.Events == "none" {
		m.Events = ""
	}
}

func (m *Mooncake) fields() []Field {
	return []Field{
		named(SectionLookupd, "store", StoreEmbedded, "embedded keeps what engines store on this node, mooncake shares it with other nodes through a Mooncake Store cluster, too; a request takes at most a quarter of store_bytes from there; see docs/mooncake.md").text(&m.Store),
		named(SectionLookupd, "store_python", defaultPython, "`interpreter` with Mooncake's wheel, of the cluster's version; engines that start the daemon name their own").text(&m.StorePython),
		named(SectionLookupd, "mooncake_library", "none", "`file` libmooncake_store.so of the cluster's version, to reach the cluster without Python, in the daemon itself; see docs/mooncake.md for what that costs").text(&m.Library),
		named(SectionLookupd, "mooncake_config", "what MOONCAKE_CONFIG_PATH says", "`file` that says how the cluster is reached, as vLLM's own Mooncake connector reads it").text(&m.ConfigPath),
		named(SectionLookupd, "mooncake_write", WriteThrough, "through stores chunks in the cluster at once, back only when memory needs their room").text(&m.Write),
		named(SectionLookupd, "mooncake_reset", ResetNode, "what a reset of a model's cache does to its objects in the cluster: node leaves them to others and no longer uses them here, cluster removes them; ctl remove does so, too, with cluster").text(&m.Reset),
		named(SectionLookupd, "mooncake_replicas", "1", "`copies` that the cluster keeps of what this node stores").number(&m.Replicas),
		named(SectionLookupd, "mooncake_lease", "10s", "`time` for which the cluster's master leases what was asked for: its default_kv_lease_ttl").duration(&m.Lease),
		named(SectionLookupd, "mooncake_events", "none", "`endpoint` at which the cluster's master publishes its KV events, as tcp://HOST:PORT, so that what they tell need not be asked; needs a master that is built with them; see docs/mooncake.md").text(&m.Events),
	}
}

// faults are those of the cluster's settings. disk: there is a disk tier.
func (m *Mooncake) faults(disk bool) (faults []error) {
	oneOf := func(key, value, one, other string) {
		if value != one && value != other {
			faults = append(faults, fault(key, "%q; want %s or %s", value, one, other))
		}
	}
	oneOf("store", m.Store, StoreEmbedded, StoreMooncake)
	oneOf("mooncake_write", m.Write, WriteThrough, WriteBack)
	oneOf("mooncake_reset", m.Reset, ResetNode, ResetCluster)
	if m.Write == WriteBack && disk && m.Store == StoreMooncake {
		faults = append(faults, fault("mooncake_write", "back, and a disk_dir: what memory has no room for goes to one of them; say through, or leave disk_dir out"))
	}
	if m.Replicas < 1 || m.Replicas > maxReplicas {
		faults = append(faults, fault("mooncake_replicas", "%d; want 1 to %d", m.Replicas, maxReplicas))
	}
	if m.Lease < time.Second || m.Lease > maxLease {
		faults = append(faults, fault("mooncake_lease", "%s; want 1s to %s", m.Lease, maxLease))
	}
	for _, path := range []struct{ key, value string }{{"mooncake_config", m.ConfigPath}, {"mooncake_library", m.Library}} {
		if path.value != "" && !strings.HasPrefix(path.value, "/") {
			faults = append(faults, fault(path.key, "%q is no absolute path", path.value))
		}
	}
	if why := badSource(m.Events); m.Events != "" && why != "" {
		faults = append(faults, fault("mooncake_events", "%q %s", m.Events, why))
	}
	return faults
}

// badSource says why an endpoint can't be connected to, "" when it can.
func badSource(endpoint string) string {
	if path, ok := strings.CutPrefix(endpoint, "ipc://"); ok {
		if !strings.HasPrefix(path, "/") {
			return "has no absolute path; want ipc:///path"
		}
		return ""
	}
	address, ok := strings.CutPrefix(endpoint, "tcp://")
	host, port, err := net.SplitHostPort(address)
	switch n, bad := strconv.ParseUint(port, 10, 16); {
	case !ok || err != nil:
		return "is no endpoint; want tcp://HOST:PORT, ipc:///path or none"
	case bad != nil || n == 0:
		return "has no port; want a number from 1 to 65535"
	case host == "" || host == "*" || host == "0.0.0.0":
		return "names no host; want the master's, not the address that it binds"
	}
	return ""
}
