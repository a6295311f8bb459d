// Package admin answers operators and their tools over HTTP:
//
//	/healthz, /livez  the process answers
//	/readyz           200 when every check is well, else 503; JSON names each check and what is wrong
//	/metrics          for Prometheus
//	/version          JSON
//
// and, on the Unix socket of the daemon's own user only,
//
//	/loglevel         GET shows it, PUT sets it: debug, info, warn, error
//	/reload           POST reads the configuration again, like SIGHUP
//	/debug/pprof/     Go's profiles
//
// A handler reads counters and asks nobody outside the process, so that an
// answer says something of this daemon alone. Time, headers and the number of
// connections are bounded; a peer that stalls holds up none but itself.
//
// The gRPC services for operators will have their own server beside this one.
package admin
