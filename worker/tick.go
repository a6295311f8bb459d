package worker

// Tick makes every store pipeline that waits for a job go round once, so that idle
// ones beat like busy ones. One that is stuck does not, and no load that is.
func (s *Server) Tick() { s.schedule.tick() }
