// Package version holds the version that the linker writes into the binaries.
package version

// Version is set by -ldflags -X.
var Version = "dev"
