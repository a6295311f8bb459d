package lookupd

import (
	"errors"
	"fmt"
	"sync"

	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
	"github.com/mooncake-sidecar/sidecar/store"
)

// engine is a registered engine and its lookup socket.
type engine struct {
	session *Session
	// name is the holder of its leases.
	name string
	path string
	spec kv.NamespaceSpec
	ns   store.Namespace
	// renewed has an element when the engine is to be told of a new generation.
	renewed chan struct{}

	// inquiries are what its lookups have the store asked.
	inquiries *inquiries
	rules     *coordinator.Coordinator
	counters  counters
	endpoint  Endpoint
	channel   *channel // nil: the engine has opened none
	// gone is closed once the engine's path is free again.
	gone chan struct{}
}

// serveEngine serves a scheduler-side shim.
func (s *Server) serveEngine(session *Session) error {
	e, err := s.register(session)
	if e == nil {
		return err
	}
	defer s.unregister(e)
	// An endpoint that fails takes its session along; the shim registers again.
	ended := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-e.endpoint.Done():
			_ = session.conn.Close() // the reader below reports it
		case <-ended:
		}
	})
	defer func() { close(ended); watching.Wait() }()

	// Asked for again: from here on the engine is told of resets, but before it
	// was not.
	now, err := s.cfg.Catalog.OpenNamespace(&e.spec)
	if err != nil {
		return session.Refuse(connector.CodeUnavailable, err)
	}
	digest := e.spec.Digest()
	s.cfg.Log.Info("engine registered", "engine", session.Hello.EngineID, "pid", session.Hello.PID, "version", session.Hello.Version,
		"lookup", e.path, "model", e.spec.Model, "namespace", fmt.Sprintf("%x", digest[:8]))
	answer := &connector.Registered{
		Type: connector.TypeRegistered, NamespaceDigest: fmt.Sprintf("%x", digest), LookupPath: e.path, StoreReady: true, Generation: now.ResetEpoch,
		LookupStride: strideOf(e.rules),
	}
	if s.cfg.Events != nil {
		stream := s.cfg.Events(&e.spec)
		answer.EventsEndpoint, answer.EventsReplay, answer.EventsTopic = stream.Endpoint, stream.Replay, stream.Topic
	}
	if err := session.Send(answer); err != nil {
		return endOfSession(err)
	}
	watching.Go(func() { s.tellGenerations(e, ended) })
	return s.converseEngine(e)
}

// converseEngine serves a registered engine until its session ends.
func (s *Server) converseEngine(e *engine) error {
	for {
		msg, err := e.session.Receive()
		if err != nil {
			return e.session.refuseUnreadable(err)
		}
		switch msg := msg.(type) {
		case *connector.LookupChannel:
			if err := s.openChannel(e); err != nil {
				return e.session.Refuse(connector.CodeBadDescriptor, err)
			}
		case *connector.Ping:
			if err := e.session.Send(pong(msg)); err != nil {
				return endOfSession(err)
			}
		default:
			return e.session.unexpected(msg)
		}
	}
}

// register reads the engine message and binds the engine's socket. It returns
// nil when the session is over; whom a taken path is refused to asks again, for a
// path of its own, in another session. Pings are answered meanwhile.
func (s *Server) register(session *Session) (*engine, error) {
	for {
		msg, err := session.Receive()
		if err != nil {
			return nil, session.refuseUnreadable(err)
		}
		switch msg := msg.(type) {
		case *connector.Ping:
			if err := session.Send(pong(msg)); err != nil {
				return nil, endOfSession(err)
			}
		case *connector.Engine:
			e, code, err := s.bind(session, msg)
			if err != nil {
				return nil, session.Refuse(code, err)
			}
			return e, nil
		default:
			return nil, session.unexpected(msg)
		}
	}
}

// bind checks what an engine says, opens its namespace and binds its socket.
// code goes with an error. The codec has checked the namespace in itself.
func (s *Server) bind(session *Session, msg *connector.Engine) (e *engine, code string, err error) {
	if msg.LookupEngine == "" {
		return nil, connector.CodeMalformed, errors.New("lookup_engine is empty")
	}
	rules, err := coordinator.New(coordinator.ConfigOf(&msg.Namespace))
	if err == nil {
		err = rules.Servable()
	}
	if err != nil {
		return nil, connector.CodeUnsupported, err
	}
	ns, err := s.cfg.Catalog.OpenNamespace(&msg.Namespace)
	switch {
	case errors.Is(err, store.ErrShardTooLarge):
		return nil, connector.CodeStoreTooSmall, err
	case err != nil:
		return nil, connector.CodeUnavailable, err
	}
	e = &engine{
		session: session, name: msg.LookupEngine, path: msg.LookupPath, spec: msg.Namespace, ns: ns, rules: rules, gone: make(chan struct{}),
		renewed: make(chan struct{}, 1), inquiries: newInquiries(s.cfg.Catalog, rules, ns.ID, msg),
	}
	if code, err := s.claim(e); err != nil {
		return nil, code, err
	}
	e.endpoint, err = s.cfg.Listen(e.path, newHandler(s.cfg, e).handle)
	if err == nil {
		return e, "", nil
	}
	e.inquiries.close()
	s.unclaim(e)
	switch {
	case errors.Is(err, ErrPathTaken):
		return nil, connector.CodeSocketTaken, fmt.Errorf("lookup socket %s: %w", e.path, err)
	case errors.Is(err, ErrBadPath):
		return nil, connector.CodeMalformed, err
	}
	return nil, connector.CodeUnavailable, err
}

// claim reserves the engine's path among ours. An earlier session of the same
// engine process has lost its connection, which we may not have noticed yet: it
// is ended and waited for.
func (s *Server) claim(e *engine) (code string, err error) {
	for {
		s.mu.Lock()
		holder := s.mu.engines[e.path]
		conflict := s.keyConflictLocked(e)
		switch {
		case s.mu.closed:
			s.mu.Unlock()
			return connector.CodeUnavailable, errors.New("the daemon is stopping")
		case conflict != nil && holder == nil:
			s.mu.Unlock()
			return connector.CodeWrongNamespace, conflict
		case holder == nil:
			s.mu.engines[e.path] = e
			s.mu.Unlock()
			return "", nil
		}
		s.mu.Unlock()
		theirs, ours := &holder.session.Hello, &e.session.Hello
		if theirs.EngineID != ours.EngineID || theirs.PID != ours.PID || theirs.Epoch > ours.Epoch {
			return connector.CodeSocketTaken, fmt.Errorf("lookup socket %s: %w by engine %s (pid %d)", e.path, ErrPathTaken, theirs.EngineID, theirs.PID)
		}
		_ = holder.session.conn.Close() // its reader reports it
		<-holder.gone
	}
}

// keyConflictLocked tells whether a live engine uses the same in-tree keys for
// other bytes.
func (s *Server) keyConflictLocked(e *engine) error {
	if e.spec.KeySpace == "" {
		return nil
	}
	for _, other := range s.mu.engines {
		if why := e.spec.KeyConflict(&other.spec); why != "" {
			return fmt.Errorf("compat_keys: engine %s (pid %d) uses the in-tree keys %.128q for other bytes: %s. "+
				"Give one of the two fleets a cache_prefix of its own, or make them equal",
				other.session.Hello.EngineID, other.session.Hello.PID, e.spec.KeySpace, why)
		}
	}
	return nil
}

// unclaim frees the engine's path.
func (s *Server) unclaim(e *engine) {
	counters := e.counters.snapshot()
	s.mu.Lock()
	delete(s.mu.engines, e.path)
	s.mu.retired.add(alias(e.spec.Model), &counters)
	s.mu.Unlock()
	close(e.gone)
}

// unregister unbinds the lookup socket, ends the channel and releases what the
// engine held.
func (s *Server) unregister(e *engine) {
	e.inquiries.stop() // a lookup may wait for one
	err := e.endpoint.Close()
	e.channel.end()
	e.inquiries.close()
	s.cfg.Catalog.ReleaseEngine(e.name)
	s.unclaim(e)
	hello := &e.session.Hello
	s.cfg.Log.Info("engine gone", "engine", hello.EngineID, "pid", hello.PID, "lookup", e.path)
	if err != nil {
		s.cfg.Log.Warn("lookup socket", "path", e.path, "error", err)
	}
}
