package registry

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

// Registry is a set of services. It is safe for concurrent use.
type Registry struct {
	max int

	mu       sync.Mutex
	services map[contract.ServiceKey]contract.Service
	// at are, by each endpoint, the services that have it as one of theirs.
	at map[string]map[contract.ServiceKey]bool
}

// New makes an empty registry of at most so many services.
func New(most int) *Registry {
	return &Registry{max: most, services: map[contract.ServiceKey]contract.Service{}, at: map[string]map[contract.ServiceKey]bool{}}
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
	for _, endpoint := range endpointsOf(&service) {
		if r.at[endpoint] == nil {
			r.at[endpoint] = map[contract.ServiceKey]bool{}
		}
		r.at[endpoint][service.Key()] = true
	}
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
	for _, endpoint := range endpointsOf(&service) {
		if delete(r.at[endpoint], key); len(r.at[endpoint]) == 0 {
			delete(r.at, endpoint)
		}
	}
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

func endpointsOf(s *contract.Service) []string {
	if s.ReplayEndpoint == "" {
		return []string{s.Endpoint}
	}
	return []string{s.Endpoint, s.ReplayEndpoint}
}

// nearLocked returns the others that have an endpoint in common with a service, in the order of
// their keys.
func (r *Registry) nearLocked(s *contract.Service) (others []contract.Service) {
	for _, endpoint := range endpointsOf(s) {
		for key := range r.at[endpoint] {
			if key != s.Key() {
				others = append(others, r.services[key])
			}
		}
	}
	slices.SortFunc(others, func(a, b contract.Service) int { return Compare(a.Key(), b.Key()) })
	return slices.Compact(others)
}

// warningsLocked says what can't be right about a service and the others. vLLM adds a rank's
// number to the ports of both its sockets: with the usual pair, 5557 and 5558, the second
// rank's events are published where the first one's replays are.
func (r *Registry) warningsLocked(s *contract.Service) (warnings []string) {
	others := r.nearLocked(s)
	if s.ReplayEndpoint == s.Endpoint {
		warnings = append(warnings, fmt.Sprintf("replay_endpoint is the publisher's own endpoint, %s", s.Endpoint))
	}
	for i := range others {
		other := &others[i]
		switch {
		case other.Endpoint == s.Endpoint && other.Topic == s.Topic && (other.Rank != s.Rank || other.Instance != s.Instance) && other.Type != contract.TypeMooncake:
			warnings = append(warnings, fmt.Sprintf("%s is the endpoint of %s, too: each rank publishes at a port of its own", s.Endpoint, other.Key()))
		case s.ReplayEndpoint != "" && other.Endpoint == s.ReplayEndpoint:
			warnings = append(warnings, fmt.Sprintf("replays are asked for at %s, where %s publishes: leave as many ports between an engine's two endpoints as it has ranks", s.ReplayEndpoint, other.Key()))
		case other.ReplayEndpoint == s.Endpoint:
			warnings = append(warnings, fmt.Sprintf("%s is where %s is asked for replays: leave as many ports between an engine's two endpoints as it has ranks", s.Endpoint, other.Key()))
		case s.ReplayEndpoint != "" && other.ReplayEndpoint == s.ReplayEndpoint && other.Endpoint != s.Endpoint:
			warnings = append(warnings, fmt.Sprintf("%s is the replay endpoint of %s, too, which publishes elsewhere", s.ReplayEndpoint, other.Key()))
		}
	}
	return warnings
}
