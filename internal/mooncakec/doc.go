// Package mooncakec is a mooncake.Engine in this process: Mooncake's client from
// its C library, libmooncake_store.so, which an operator has built and names.
//
// It is the second way to a cluster, for machines without Python. The first, a side
// process (package sideproc), needs no library of the operator's, and what hangs or
// crashes in it can be killed: here a crash takes the daemon along.
//
// # The library
//
// It is loaded when Run begins, from an absolute path, for as long as the process
// lives. Nothing is linked: functions are found by name, once, into a table. One
// that is needed and not there is an error that names both; what can be done
// without is not (the name of the lent memory, the client's own health). Calls are
// batches, each one call into C, with its arguments in one block of C memory
// (pack.go); the library never sees a pointer to Go memory.
//
// The structure that says how objects are kept has changed between releases, and
// the library does not say which one it has. It is asked: see pins.
//
// # The memory
//
// It is registered once, when a client is set up, and each range is checked to be
// inside it: Mooncake's TCP transport takes any address, and RDMA none other.
//
// # Time
//
// A call of the library may hang, and nothing in a process can be killed. Each has
// a limit. When it has passed, the engine is down: calls fail at once, and Health
// says why, until that call returns. A question's caller is answered then. A put or a
// get ends with the library's call, for the library may touch its ranges until
// then; who can keep them out of use (Config.Hold) is answered at the limit. So
// memory that a call which hangs may write to is in nobody else's hands.
//
// Mooncake also gives transfers up without ending them, after a minute. A transfer
// that failed late is answered when its client has been destroyed, which ends what
// it does; another client is set up then.
//
// # Signals
//
// In a process without Python the library takes SIGINT, SIGTERM and SIGHUP to
// itself: the first client starts a thread that waits for them, destroys all
// clients and ends the process. It tells Python by the symbol Py_IsInitialized, so
// this package exports one, and refuses to load a library when that is not found.
// Threads that the library starts have our signals blocked.
package mooncakec
