package evict

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Default is the name of the policy that a store has when nothing else is said.
const Default = "lru"

// ErrUnknownPolicy: no policy has that name.
var ErrUnknownPolicy = errors.New("no such eviction policy")

// Names returns the names that New knows, in the order of the documentation.
func Names() []string { return []string{"lru"} }

// New returns the named policy for the records [0, records).
func New(name string, records int) (Policy, error) {
	switch name {
	case "lru":
		return NewLRU(records), nil
	}
	return nil, fmt.Errorf("%w: %q; want %s", ErrUnknownPolicy, name, strings.Join(Names(), ", "))
}

// Known tells whether New knows the name.
func Known(name string) bool { return slices.Contains(Names(), name) }
