package evict

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Names of the policies.
const (
	NameLRU   = "lru"
	NameFIFO  = "fifo"
	NameLFU   = "lfu"
	NameSIEVE = "sieve"
	// NameHazard is our own.
	NameHazard = "hazard"
)

// Default is the policy that a daemon's store has when nothing else is said. See
// docs/eviction.md for why.
const Default = NameHazard

// ErrUnknownPolicy: no policy has that name.
var ErrUnknownPolicy = errors.New("no such eviction policy")

// Names returns the names that New knows.
func Names() []string { return []string{NameLRU, NameFIFO, NameLFU, NameSIEVE, NameHazard} }

// Known tells whether New knows the name.
func Known(name string) bool { return slices.Contains(Names(), name) }

// New returns the named policy for the records [0, records).
func New(name string, records int) (Policy, error) {
	switch name {
	case NameLRU:
		return NewLRU(records), nil
	case NameFIFO:
		return NewFIFO(records), nil
	case NameLFU:
		return NewLFU(records), nil
	case NameSIEVE:
		return NewSIEVE(records), nil
	case NameHazard:
		return NewHazard(records), nil
	}
	return nil, fmt.Errorf("%w: %q; want %s", ErrUnknownPolicy, name, strings.Join(Names(), ", "))
}
