package cluster

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
)

// ErrConfig: the cluster's configuration can't be used.
var ErrConfig = errors.New("configuration of the Mooncake cluster")

// Mode says who owns the memory of the cluster.
type Mode string

// The modes of the in-tree connector.
const (
	// ModeEmbedded: every client lends the cluster memory, GlobalSegmentBytes.
	ModeEmbedded Mode = "embedded"
	// ModeStandalone: clients lend none; storage nodes of their own have it.
	ModeStandalone Mode = "standalone-store"
)

// Config says how a cluster is reached.
type Config struct {
	// MetadataServer is where transfer engines find each other: a URL, or
	// P2PHANDSHAKE for none.
	MetadataServer string
	// MasterServerAddress is host:port of the master.
	MasterServerAddress string
	// Protocol moves the bytes: tcp, rdma, ...
	Protocol string
	// DeviceName names network devices for RDMA; empty: chosen by Mooncake.
	DeviceName string
	Mode       Mode
	// GlobalSegmentBytes is the memory lent to the cluster; 0 when standalone.
	GlobalSegmentBytes uint64
	// LocalBufferBytes is for Mooncake's own copies, which we make none of.
	LocalBufferBytes uint64
	// Offload: storage nodes keep objects on SSDs, too.
	Offload bool
	// TenantID is the tenant; "default" where nothing is said.
	TenantID string
	// LocalHostname is under which name the others reach this node; empty: found out
	// from the way to the master.
	LocalHostname string
	// PreferredSegment is the segment (host:port) that puts go to; empty for none.
	PreferredSegment string
}

// Defaults of the in-tree connector.
const (
	DefaultSegmentBytes = 4 << 30
	DefaultBufferBytes  = 4 << 30
	DefaultProtocol     = "rdma"
	DefaultTenant       = "default"
)

// protocols are those that Mooncake 0.3.13 knows; which of them a build has is
// its own matter.
var protocols = []string{
	"tcp", "rdma", "efa", "nvmeof", "nvlink", "musa", "nvlink_intra", "hip", "barex", "cxl", "ascend", "ub", "ubshmem", "maca",
	"sunrise_link", "rpc_only",
}

// Validate reports everything that is wrong, one line each.
func (c *Config) Validate() error {
	var faults []error
	fault := func(field, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: %s: %s", ErrConfig, field, fmt.Sprintf(format, args...)))
	}
	if host, port, err := net.SplitHostPort(strings.TrimSpace(c.MasterServerAddress)); err != nil || host == "" || port == "" {
		// A scheme names where one of several masters is found.
		if !strings.Contains(c.MasterServerAddress, "://") {
			fault("master_server_address", "%q; want the master's host and port, for example 10.0.0.1:50051", c.MasterServerAddress)
		}
	}
	if strings.TrimSpace(c.MetadataServer) == "" {
		fault("metadata_server", "it is empty; want the master's http://host:8080/metadata, or P2PHANDSHAKE when there is none")
	}
	if !slices.Contains(protocols, c.Protocol) {
		fault("protocol", "%q; want tcp, rdma, or another that Mooncake knows (%s)", c.Protocol, strings.Join(protocols[2:], ", "))
	}
	switch c.Mode {
	case ModeEmbedded:
		if c.GlobalSegmentBytes == 0 {
			fault("global_segment_size", "0, but mode embedded lends the cluster memory; say how much, or mode standalone-store")
		}
	case ModeStandalone:
		if c.GlobalSegmentBytes != 0 {
			fault("global_segment_size", "%d, but mode standalone-store lends the cluster no memory; say 0, or mode embedded", c.GlobalSegmentBytes)
		}
	default:
		fault("mode", "%q; want %s or %s", c.Mode, ModeEmbedded, ModeStandalone)
	}
	if c.LocalBufferBytes == 0 {
		fault("local_buffer_size", "0; the in-tree connector wants more, whatever we do")
	}
	return errors.Join(faults...)
}
