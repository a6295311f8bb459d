// Package cuda is the part of the CUDA driver's API that the GPU device uses:
// memory and events of another process, host memory that the GPU reaches, copies,
// and a kernel.
//
// # The library
//
// libcuda.so.1 is loaded by dlopen when Open is called: nothing of CUDA is needed
// to build, and a machine without a driver gets ErrNoDriver. Functions are found
// by name, once, into a table (functions.h); one that is needed and not there is
// an error that names it, one that is a convenience is a capability (CanMapChunks,
// CanBatch). Nothing is left for the dynamic linker to find, so programs start
// with -z now as well.
//
// # Contexts and threads
//
// Every call names its Context and makes it current on the thread that it runs on:
// goroutines may call from anywhere, at the same time. A context is the device's
// primary one, as other users of the driver in this process would have it.
//
// # Errors
//
// An Error keeps CUDA's number and name. After one that is Lost (a fault of a
// kernel, an error of the memory, a GPU that has gone) a context answers every
// call with it; nothing in the process can mend that.
//
// # What is trusted
//
// Handles come from another process. They are opaque to us and of fixed length;
// the driver says how long the memory behind one is (Range), and that is what
// offsets are checked against, never the peer's word.
package cuda
