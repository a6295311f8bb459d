package registry

import (
	"cmp"
	"fmt"
	"sync"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

// Registry is a set of services. It is safe for concurrent use.
type Registry struct {
	max int

	mu       sync.Mutex
	services map[contract.ServiceKey]contract.Service
	// crowds are those that have something in common, see near.go.
	crowds map[relation]crowd
}

// New makes an empty registry of at most so many services.
func New(most int) *Registry {
	return &Registry{max: most, services: map[contract.ServiceKey]contract.Service{}, crowds: map[relation]crowd{}}
}

// Add puts a service in, as it is kept: with its defaults. The same one again changes
// nothing; another one of its key is contract.ErrConflict.
func (r *Registry) Add(service contract.Service) (contract.Service, contract.Registered, error) {
	if err := Prepare(&service); err != nil {
		return service, contract.Registered{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	known, ok := r.services[service.Key()]
	switch {
	case ok && known != service:
		err := fmt.Errorf("registry: %w: %s is there with another %s; unregister it first", contract.ErrConflict, service.Key(), difference(&known, &service))
		return service, contract.Registered{}, err
	case ok:
		return service, contract.Registered{Existed: true, Warnings: r.warningsLocked(&service)}, nil
	case len(r.services) >= r.max:
		return service, contract.Registered{}, fmt.Errorf("registry: %w: %d services", contract.ErrLimit, r.max)
	}
	warnings := r.warningsLocked(&service)
	r.services[service.Key()] = service
	r.enterLocked(&service)
	return service, contract.Registered{Warnings: warnings}, nil
}

// Remove takes a service out, or is contract.ErrNotFound.
func (r *Registry) Remove(key contract.ServiceKey) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	service, ok := r.services[key]
	if !ok {
		return fmt.Errorf("registry: %w: %s", contract.ErrNotFound, key)
	}
	delete(r.services, key)
	r.leaveLocked(&service)
	return nil
}

// Warnings are what the operator of a service should know of how it stands to the others.
func (r *Registry) Warnings(key contract.ServiceKey) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	service, ok := r.services[key]
	if !ok {
		return nil
	}
	return r.warningsLocked(&service)
}

// Compare orders services by their keys: instances, then tenants, then ranks.
func Compare(a, b contract.ServiceKey) int {
	return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Rank, b.Rank))
}

// difference names the first field in which two services differ.
func difference(a, b *contract.Service) string {
	for _, field := range []struct {
		name  string
		equal bool
	}{
		{"endpoint", a.Endpoint == b.Endpoint}, {"replay_endpoint", a.ReplayEndpoint == b.ReplayEndpoint}, {"topic", a.Topic == b.Topic},
		{"type", a.Type == b.Type}, {"modelname", a.Model == b.Model}, {"lora_name", a.LoRA == b.LoRA}, {"block_size", a.BlockTokens == b.BlockTokens},
		{"additionalsalt", a.AdditionalSalt == b.AdditionalSalt},
	} {
		if !field.equal {
			return field.name
		}
	}
	return "hash profile"
}
