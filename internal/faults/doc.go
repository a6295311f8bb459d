// Package faults reads which faults a binary built with the tag "faults" should
// have. The safety tests run such binaries to show that they can fail. A binary
// built without the tag has none, whatever its environment says.
package faults
