package worker

// Tick makes every pipeline that waits for a job go round once, so that idle ones
// beat like busy ones. One that is stuck does not.
func (s *Server) Tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for q := range s.mu.queues {
		q.tick()
	}
}
