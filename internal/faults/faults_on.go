//go:build faults

package faults

import "github.com/mooncake-sidecar/sidecar/worker"

// Worker returns the faults of the variable Variable, which getenv reads.
func Worker(getenv func(string) string) (worker.Faults, error) { return Parse(getenv(Variable)) }
