//go:build !faults

package faults

import "github.com/mooncake-sidecar/sidecar/worker"

// Worker returns no faults: this build has none.
func Worker(func(string) string) (worker.Faults, error) { return worker.Faults{}, nil }
