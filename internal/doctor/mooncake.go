package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Cluster is what a try of the way to the Mooncake cluster has found.
type Cluster struct {
	// File is where the configuration stands. ConfigErr: it can't be used, and nothing
	// was tried.
	File      string
	ConfigErr error
	// Notes are what the configuration's reader has to say.
	Notes []string
	// Master, Metadata and Protocol are as configured; the errors are of a connection to
	// them, nil for one that came about and for what was not tried.
	Master, Metadata, Protocol string
	MasterErr, MetadataErr     error
	// Library is Mooncake's library, if it is what reaches the cluster, and Python the
	// interpreter whose process does otherwise. Ready: it has put, got and compared an
	// object; Reason says why not, and Note what is to be known all the same.
	Library, Python, Reason, Note string
	Ready                         bool
	Versions                      map[string]string
	// LentBytes is what the daemon would lend the cluster.
	LentBytes uint64
	// Events is where the master's KV events are to be heard, "" for nowhere. EventsErr: it
	// could not be tried. Linked: there is a publisher; Told: it has told of the object that
	// was put, or another; Named: by its key.
	Events              string
	EventsErr           error
	Linked, Told, Named bool
}

// promiseShare is the part of the store that one request may take from the cluster.
const promiseShare = 4

// mooncake looks at the way to the Mooncake cluster.
func mooncake(ctx context.Context, s *System, c *Settings) []Finding {
	if s.Cluster == nil {
		return ok("no Mooncake cluster is asked for", "store")
	}
	r := s.Cluster(ctx)
	if r.ConfigErr != nil {
		return found(Failure, r.ConfigErr.Error(), r.File, "name the JSON file that vLLM's own Mooncake connector would read: MOONCAKE_CONFIG_PATH or mooncake_config")
	}
	var all []Finding
	for _, note := range r.Notes {
		all = append(all, Finding{Severity: Info, What: note, Where: r.File})
	}
	if r.MasterErr != nil {
		all = append(all, Finding{
			Severity: Failure, What: fmt.Sprintf("the master does not answer: %v", r.MasterErr), Where: r.Master,
			Do: "start mooncake_master there, or mend master_server_address and the firewall",
		})
	}
	if r.MetadataErr != nil {
		all = append(all, Finding{
			Severity: Failure, What: fmt.Sprintf("the metadata server does not answer: %v", r.MetadataErr), Where: r.Metadata,
			Do: "mooncake_master --enable_http_metadata_server=true has one; or say P2PHANDSHAKE on all nodes",
		})
	}
	if r.MasterErr == nil && r.MetadataErr == nil {
		all = append(all, probed(&r, c.StoreBytes)...)
		all = append(all, told(&r)...)
	}
	if r.Protocol != "tcp" {
		all = append(all, rdma(s, &r)...)
	}
	if total, there := kibibytes(s.Root, "proc/meminfo", "MemTotal:"); there && r.LentBytes+c.StoreBytes > total {
		all = append(all, Finding{
			Severity: Warning, What: fmt.Sprintf("the store of %s and the %s that are lent to the cluster are more than the memory", size(c.StoreBytes), size(r.LentBytes)), Where: r.File,
			Do: "lower store_bytes or global_segment_size, or say mode standalone-store where storage nodes have the memory",
		})
	}
	return all
}

// probed says what became of the probe object.
func probed(r *Cluster, storeBytes uint64) []Finding {
	var versions []string
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		versions = append(versions, name+" "+r.Versions[name])
	}
	by := "the side process of " + r.Python
	if r.Library != "" {
		by = "the library " + r.Library
	}
	switch {
	case !r.Ready && r.Library != "":
		return found(Failure, "no object could be put, got and compared by the library: "+r.Reason, r.Library,
			"let mooncake_library name a libmooncake_store.so of the cluster's version, or leave it out: then a side process of store_python is used")
	case !r.Ready:
		return found(Failure, "no object could be put, got and compared: "+r.Reason, r.Python,
			"give store_python an interpreter with mooncake-transfer-engine in the version of the cluster's master")
	case r.Note != "":
		return found(Warning, r.Note, r.Master, "start storage nodes, or lend memory: mode embedded and global_segment_size")
	}
	return ok(fmt.Sprintf("an object was put, got and compared by %s, with %s (%s); a request takes at most %s from the cluster, a quarter of the store", r.Protocol, by, strings.Join(versions, ", "), size(storeBytes/promiseShare)), r.Master)
}

// told says whether the master's KV events are to be had.
func told(r *Cluster) []Finding {
	const start = "start the master with --enable_kv_events=true --kv_events_bind_endpoint=tcp://0.0.0.0:PORT --kv_events_backend_id=NAME, or leave mooncake_events out; " +
		"a master that was built without them takes the flags and tells nothing (its /kv_events/status says so)"
	switch {
	case r.Events == "":
		return nil
	case r.EventsErr != nil:
		return found(Failure, fmt.Sprintf("the master's KV events can't be followed: %v", r.EventsErr), r.Events, "mend mooncake_events")
	case !r.Linked:
		return found(Warning, "nobody publishes KV events there: lookups ask the cluster", r.Events, start)
	case !r.Ready:
		return nil
	case !r.Told:
		return found(Warning, "the publisher there tells nothing of an object that was put: lookups ask the cluster", r.Events, "let mooncake_events name the cluster's own master; "+start)
	case !r.Named:
		return found(Warning, "the master's KV events name no objects: lookups ask the cluster", r.Events, "start the master with --kv_events_emit_object_key=true")
	}
	return ok("the master's KV events tell of what is stored", r.Events)
}

// rdma looks at what another protocol than TCP needs.
func rdma(s *System, r *Cluster) []Finding {
	if s.Machine == nil {
		return nil
	}
	m, err := s.Machine()
	if err != nil {
		return nil // gpus says so
	}
	active := 0
	for i := range m.NICs {
		if m.NICs[i].RDMA != "" && m.NICs[i].Active {
			active++
		}
	}
	if active == 0 {
		return found(Warning, fmt.Sprintf("protocol is %s, and no RDMA device here has a link: Mooncake goes by TCP, if the others do, too", r.Protocol), r.File,
			"say protocol tcp on all nodes, or bring a device up")
	}
	return nil
}
