package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
	"github.com/mooncake-sidecar/sidecar/store/embedded/storepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// fail turns a call's error into the store's. Unless the master refused the call
// by its contents, what it did is unknown: the session ends, and the next one
// settles it.
func (c *Client) fail(session *storepb.Session, call string, err error) error {
	switch status.Code(err) {
	case codes.FailedPrecondition:
		return fmt.Errorf("%s: %w: %s", call, store.ErrStaleNamespace, status.Convert(err).Message())
	case codes.OutOfRange:
		return fmt.Errorf("%s: %w: %s", call, store.ErrShardTooLarge, status.Convert(err).Message())
	case codes.InvalidArgument, codes.ResourceExhausted:
		return fmt.Errorf("%s: refused: %s", call, status.Convert(err).Message())
	}
	c.endSession(session.GetNumber())
	return fmt.Errorf("%s: %w: %w", call, store.ErrUnavailable, err)
}

func namespacePB(ns store.Namespace) *storepb.Namespace {
	return &storepb.Namespace{Id: uint32(ns.ID), ResetEpoch: ns.ResetEpoch}
}

// OpenNamespace implements store.Store.
func (c *Client) OpenNamespace(ctx context.Context, spec *kv.NamespaceSpec) (store.Namespace, error) {
	session, err := c.openSession()
	if err != nil {
		return store.Namespace{}, err
	}
	encoded, err := json.Marshal(spec)
	if err != nil {
		return store.Namespace{}, fmt.Errorf("open namespace: %w", err)
	}
	reply, err := c.rpc.OpenNamespace(ctx, &storepb.OpenNamespaceRequest{Session: session, Spec: encoded})
	if err != nil {
		return store.Namespace{}, c.fail(session, "open namespace", err)
	}
	n := reply.GetNamespace()
	return store.Namespace{ID: store.NamespaceID(n.GetId()), ResetEpoch: n.GetResetEpoch()}, nil
}

// PutStart implements store.Store.
func (c *Client) PutStart(ctx context.Context, ns store.Namespace, opts store.PutOptions, items []store.PutItem) ([]store.PutGrant, error) {
	session, err := c.openSession()
	if err != nil {
		return nil, err
	}
	req := &storepb.PutStartRequest{
		Session: session, Namespace: namespacePB(ns), SaltTag: opts.SaltTag, TtlSeconds: uint32(opts.TTL / time.Second), Pin: uint32(opts.Pin),
		Groups: make([]uint32, len(items)), Shards: make([]uint32, len(items)), Depths: make([]uint32, len(items)),
		Hashes: make([]byte, 0, len(items)*kv.MaxHashBytes), Parents: make([]byte, 0, len(items)*kv.MaxHashBytes),
	}
	for i := range items {
		it := &items[i]
		req.Groups[i], req.Shards[i], req.Depths[i] = it.Group, it.Shard, it.Depth
		req.Hashes = append(req.Hashes, it.Hash[:]...)
		req.Parents = append(req.Parents, it.Parent[:]...)
	}
	req.NearNode = c.nearNode.Load()
	reply, err := c.rpc.PutStart(ctx, req)
	if err != nil {
		return nil, c.fail(session, "put_start", err)
	}
	granted := len(reply.GetTickets())
	if len(reply.GetStatuses()) != len(items) || bytes.Count(reply.GetStatuses(), []byte{byte(store.PutGranted)}) != granted ||
		len(reply.GetSegments()) != granted || len(reply.GetOffsets()) != granted || len(reply.GetLengths()) != granted {
		return nil, c.fail(session, "put_start", errColumns)
	}
	segment, ok := c.hold(session.GetNumber(), reply.GetTickets(), true)
	if !ok {
		return nil, fmt.Errorf("put_start: %w", errNoSession)
	}
	grants := make([]store.PutGrant, len(items))
	next := 0
	for i, st := range reply.GetStatuses() {
		grants[i].Status = store.PutStatus(st)
		if grants[i].Status != store.PutGranted {
			continue
		}
		grants[i].Ticket = reply.GetTickets()[next]
		grants[i].Place = store.Place{Segment: uint32(segment), Offset: reply.GetOffsets()[next], Bytes: reply.GetLengths()[next]}
		next++
	}
	return grants, nil
}

var errColumns = status.Error(codes.Internal, "the reply's columns do not fit")

// PutEnd implements store.Store.
func (c *Client) PutEnd(ctx context.Context, ns store.Namespace, commits []store.PutCommit) ([]bool, error) {
	published := make([]bool, len(commits))
	tickets := make([]uint64, len(commits))
	for i := range commits {
		tickets[i] = commits[i].Ticket
	}
	// Dropped first: from here on the master alone knows of the puts.
	known, positions := c.drop(tickets)
	if len(known) == 0 {
		return published, nil // of an earlier segment
	}
	session, err := c.openSession()
	if err != nil {
		return nil, err
	}
	req := &storepb.PutEndRequest{Session: session, Namespace: namespacePB(ns), Tickets: known}
	for _, i := range positions {
		req.Checksums = append(req.Checksums, commits[i].Checksum)
	}
	reply, err := c.rpc.PutEnd(ctx, req)
	if err != nil {
		// Refused or not: what is not ended is open at the master, which we do not
		// hold any more.
		c.endSession(session.GetNumber())
		return nil, c.fail(session, "put_end", err)
	}
	if len(reply.GetPublished()) != len(known) {
		return nil, c.fail(session, "put_end", errColumns)
	}
	for i, p := range reply.GetPublished() {
		published[positions[i]] = p != 0
	}
	return published, nil
}

// PutRevoke implements store.Store. Without a session nothing has to be sent:
// the next one declares the puts that are open.
func (c *Client) PutRevoke(ctx context.Context, _ store.Namespace, tickets []uint64) error {
	known, _ := c.drop(tickets)
	session := c.sessionIfOpen()
	if len(known) == 0 || session == nil {
		return nil
	}
	if _, err := c.rpc.PutRevoke(ctx, &storepb.PutRevokeRequest{Session: session, Tickets: known}); err != nil {
		return c.fail(session, "put_revoke", err)
	}
	return nil
}

// Get implements store.Store. It asks for what was not offered.
func (c *Client) Get(ctx context.Context, ns store.Namespace, lease store.Lease, items []store.GetItem) ([]store.GetResult, error) {
	if results := c.offered(ns, lease, items); results != nil {
		return results, nil
	}
	session, err := c.openSession()
	if err != nil {
		return nil, err
	}
	req := &storepb.GetRequest{
		Session: session, Namespace: namespacePB(ns), LeaseEngine: lease.Engine, LeaseRequest: lease.Request,
		Groups: make([]uint32, len(items)), Shards: make([]uint32, len(items)), Hashes: make([]byte, 0, len(items)*kv.MaxHashBytes),
	}
	for i := range items {
		req.Groups[i], req.Shards[i] = items[i].Group, items[i].Shard
		req.Hashes = append(req.Hashes, items[i].Hash[:]...)
	}
	reply, err := c.rpc.Get(ctx, req)
	if err != nil {
		return nil, c.fail(session, "get", err)
	}
	ready := len(reply.GetRefs())
	if len(reply.GetStatuses()) != len(items) || bytes.Count(reply.GetStatuses(), []byte{byte(store.GetReady)}) != ready || len(reply.GetSegments()) != ready || len(reply.GetOffsets()) != ready ||
		len(reply.GetLengths()) != ready || len(reply.GetChecksums()) != ready || len(reply.GetTiers()) != ready {
		return nil, c.fail(session, "get", errColumns)
	}
	segment, ok := c.hold(session.GetNumber(), reply.GetRefs(), false)
	if !ok {
		return nil, fmt.Errorf("get: %w", errNoSession)
	}
	results := make([]store.GetResult, len(items))
	next := 0
	for i, st := range reply.GetStatuses() {
		results[i].Status = store.GetStatus(st)
		if results[i].Status != store.GetReady {
			continue
		}
		results[i].Ref = reply.GetRefs()[next]
		results[i].Checksum = reply.GetChecksums()[next]
		results[i].Tier = store.Tier(reply.GetTiers()[next])
		results[i].Place = store.Place{Segment: uint32(segment), Offset: reply.GetOffsets()[next], Bytes: reply.GetLengths()[next]}
		next++
	}
	return results, nil
}

// AwaitArrival implements store.Store. It changes nothing at the master, so that an
// error, the caller's impatience among them, ends no session.
func (c *Client) AwaitArrival(ctx context.Context, ns store.Namespace, chunk store.ChunkKey, atMost time.Duration) error {
	session, err := c.openSession()
	if err != nil {
		return err
	}
	_, err = c.rpc.AwaitArrival(ctx, &storepb.AwaitArrivalRequest{
		Session: session, Namespace: namespacePB(ns), Group: chunk.Group, Hash: chunk.Hash[:],
		AtMostUs: uint32(min(max(atMost, 0), time.Second) / time.Microsecond),
	})
	if err != nil {
		return fmt.Errorf("await arrival: %w", err)
	}
	return nil
}

// Release implements store.Store. Without a session nothing has to be sent.
func (c *Client) Release(ctx context.Context, refs []uint64) error {
	known, _ := c.drop(refs)
	session := c.sessionIfOpen()
	if len(known) == 0 || session == nil {
		return nil
	}
	if _, err := c.rpc.Release(ctx, &storepb.ReleaseRequest{Session: session, Refs: known}); err != nil {
		return c.fail(session, "release", err)
	}
	return nil
}

// ReportFailed implements store.Store.
func (c *Client) ReportFailed(ctx context.Context, ns store.Namespace, chunks []store.FailedChunk) error {
	session, err := c.openSession()
	if err != nil {
		return err
	}
	req := &storepb.ReportFailedRequest{Session: session, Namespace: namespacePB(ns)}
	for i := range chunks {
		req.Groups = append(req.Groups, chunks[i].Group)
		req.Hashes = append(req.Hashes, chunks[i].Hash[:]...)
		corrupt := byte(0)
		if chunks[i].Corrupt {
			corrupt = 1
		}
		req.Corrupt = append(req.Corrupt, corrupt)
	}
	if _, err := c.rpc.ReportFailed(ctx, req); err != nil {
		return c.fail(session, "report_failed", err)
	}
	return nil
}

// settle gives back what was declared to the master and dropped since.
func (c *Client) settle(ctx context.Context, session uint64, declared *connector.Declare) {
	reads, puts := c.dropped(declared.Reads, false), c.dropped(declared.Puts, true)
	pb := &storepb.Session{Client: c.cfg.ID, Number: session}
	if len(reads) > 0 {
		if _, err := c.rpc.Release(ctx, &storepb.ReleaseRequest{Session: pb, Refs: reads}); err != nil {
			_ = c.fail(pb, "release", err) // the next session settles it
		}
	}
	if len(puts) > 0 {
		if _, err := c.rpc.PutRevoke(ctx, &storepb.PutRevokeRequest{Session: pb, Tickets: puts}); err != nil {
			_ = c.fail(pb, "put_revoke", err) // likewise
		}
	}
}
