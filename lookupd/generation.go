package lookupd

import (
	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/store"
)

// NamespaceReset tells the engines of a namespace that it is at a new generation.
// It does not wait for them: an engine that hears late stores nothing meanwhile,
// because the store takes puts of the present generation only.
func (s *Server) NamespaceReset(ns store.NamespaceID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.mu.engines {
		if e.ns.ID != ns {
			continue
		}
		select {
		case e.renewed <- struct{}{}:
		default: // it is about to be told
		}
	}
}

// tellGenerations tells an engine of its namespace's generations until its session
// ends. Of several resets in a row it may hear only of the last.
//
// REQUIRES: the engine was answered.
func (s *Server) tellGenerations(e *engine, ended <-chan struct{}) {
	for {
		select {
		case <-e.renewed:
		case <-ended:
			return
		}
		now, err := s.cfg.Catalog.OpenNamespace(&e.spec)
		if err == nil {
			err = e.session.Send(&connector.Generation{Type: connector.TypeGeneration, Generation: now.ResetEpoch})
		}
		if err != nil {
			// It hears of it with its next session.
			s.cfg.Log.Debug("tell an engine of a reset", "engine", e.name, "error", err)
			_ = e.session.conn.Close() // its reader reports it
			return
		}
	}
}
