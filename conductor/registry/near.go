package registry

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

// relation is what services have in common that can't be right about some of them. However
// many have it, one of the others and their number are all that an operator needs, and all
// that is looked for.
type relation struct {
	kind     kind
	endpoint string
	topic    string // of together alone
}

type kind uint8

const (
	// together: engines that publish a topic at an endpoint. Ranks differ.
	together kind = iota
	// publishers are at an endpoint, and askers ask for replays there. All differ.
	publishers
	askers
	// sources publish where the endpoint is asked for their replays. Where they publish
	// differs.
	sources
)

// crowd are the services of a relation, in the order of that in which they differ.
type crowd []neighbour

type neighbour struct {
	apart string
	key   contract.ServiceKey
}

func (n neighbour) compare(other neighbour) int {
	return cmp.Or(cmp.Compare(n.apart, other.apart), Compare(n.key, other.key))
}

// place returns where one is, or belongs.
func (c crowd) place(n neighbour) (int, bool) {
	return slices.BinarySearchFunc(c, n, neighbour.compare)
}

// others returns the first of those that differ, and how many do.
func (c crowd) others(apart string) (first contract.ServiceKey, n int) {
	compare := func(of neighbour, apart string) int { return cmp.Compare(of.apart, apart) }
	begin, _ := slices.BinarySearchFunc(c, apart, compare)
	end, _ := slices.BinarySearchFunc(c, apart+"\x00", compare) // nothing is between the two
	switch n = len(c) - (end - begin); {
	case n == 0:
	case begin > 0:
		first = c[0].key
	default:
		first = c[end].key
	}
	return first, n
}

// relations of a service, and what sets it apart in each.
func relations(s *contract.Service) map[relation]string {
	key := s.Key()
	name := key.Instance + "\x01" + key.Tenant + "\x01" + strconv.Itoa(key.Rank)
	all := map[relation]string{{kind: publishers, endpoint: s.Endpoint}: name}
	if s.Type != contract.TypeMooncake {
		all[relation{together, s.Endpoint, s.Topic}] = rankOf(s)
	}
	if s.ReplayEndpoint != "" {
		all[relation{kind: askers, endpoint: s.ReplayEndpoint}] = name
		all[relation{kind: sources, endpoint: s.ReplayEndpoint}] = s.Endpoint
	}
	return all
}

func rankOf(s *contract.Service) string { return s.Instance + "\x01" + strconv.Itoa(s.Rank) }

// enterLocked puts a service into its crowds, and leaveLocked takes it out.
func (r *Registry) enterLocked(s *contract.Service) {
	for of, apart := range relations(s) {
		c, one := r.crowds[of], neighbour{apart, s.Key()}
		at, _ := c.place(one)
		r.crowds[of] = slices.Insert(c, at, one)
	}
}

func (r *Registry) leaveLocked(s *contract.Service) {
	for of, apart := range relations(s) {
		c := r.crowds[of]
		if at, ok := c.place(neighbour{apart, s.Key()}); ok {
			c = slices.Delete(c, at, at+1)
		}
		if r.crowds[of] = c; len(c) == 0 {
			delete(r.crowds, of)
		}
	}
}

// warningsLocked says what can't be right about a service and the others. vLLM adds a rank's
// number to the ports of both its sockets: with the usual pair, 5557 and 5558, the second
// rank's events are published where the first one's replays are.
func (r *Registry) warningsLocked(s *contract.Service) (warnings []string) {
	of := relations(s)
	warn := func(with relation, apart, format, endpoint string) {
		first, n := r.crowds[with].others(apart)
		if n == 0 {
			return
		}
		who := first.String()
		if n > 1 {
			who += fmt.Sprintf(" (and of %d more)", n-1)
		}
		warnings = append(warnings, fmt.Sprintf(format, endpoint, who))
	}
	name := of[relation{kind: publishers, endpoint: s.Endpoint}]
	warn(relation{together, s.Endpoint, s.Topic}, rankOf(s), "%s is the endpoint of %s, too: each rank publishes at a port of its own", s.Endpoint)
	warn(relation{kind: askers, endpoint: s.Endpoint}, name, "%s is the replay endpoint of %s: leave as many ports between an engine's two endpoints as it has ranks", s.Endpoint)
	switch s.ReplayEndpoint {
	case "":
	case s.Endpoint:
		warnings = append(warnings, fmt.Sprintf("replay_endpoint is the publisher's own endpoint, %s", s.Endpoint))
	default:
		warn(relation{kind: publishers, endpoint: s.ReplayEndpoint}, name,
			"replays are asked for at %s, the endpoint of %s: leave as many ports between an engine's two endpoints as it has ranks", s.ReplayEndpoint)
		warn(relation{kind: sources, endpoint: s.ReplayEndpoint}, s.Endpoint, "%s is the replay endpoint of %s, too, which publishes elsewhere", s.ReplayEndpoint)
	}
	return warnings
}
