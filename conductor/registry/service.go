package registry

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// Limits on what a service says.
const (
	maxTextBytes   = 512
	maxBlockTokens = 1 << 20
	maxRank        = 1 << 16
)

// Prepare gives a service its defaults and checks it; what can't be is a
// *contract.FieldError.
func Prepare(s *contract.Service) error {
	if s.Tenant == "" {
		s.Tenant = prefixindex.DefaultTenant
	}
	known, ok := contract.ParseType(s.Type)
	if !ok {
		return fault("type", "invalid_value", "%q is none of vLLM, SGLang and Mooncake", s.Type)
	}
	s.Type = known
	for _, text := range []struct {
		field, value string
		needed       bool
	}{
		{"modelname", s.Model, true}, {"instance_id", s.Instance, true}, {"lora_name", s.LoRA, false}, {"tenant_id", s.Tenant, false},
		{"additionalsalt", s.AdditionalSalt, false}, {"topic", s.Topic, false},
		{"algorithm", s.Hash.Algorithm, false}, {"python_hash_seed", s.Hash.Seed, false},
	} {
		switch {
		case text.needed && text.value == "":
			return fault(text.field, "missing", "it is needed")
		case len(text.value) > maxTextBytes:
			return fault(text.field, "out_of_range", "%d bytes, at most %d", len(text.value), maxTextBytes)
		case !utf8.ValidString(text.value):
			return fault(text.field, "invalid_value", "it is not UTF-8")
		}
	}
	switch {
	case s.BlockTokens < 0 || s.BlockTokens > maxBlockTokens:
		return fault("block_size", "out_of_range", "%d is not from 1 to %d, or 0 for what the events say", s.BlockTokens, maxBlockTokens)
	case s.Rank > maxRank || s.Rank < 0 && (s.Rank != prefixindex.Shared || s.Type != contract.TypeMooncake):
		return fault("dp_rank", "out_of_range", "%d is not from 0 to %d", s.Rank, maxRank)
	}
	if err := checkEndpoint("endpoint", s.Endpoint); err != nil {
		return err
	}
	if s.ReplayEndpoint != "" {
		return checkEndpoint("replay_endpoint", s.ReplayEndpoint)
	}
	return nil
}

func fault(field, reason, format string, args ...any) error {
	return &contract.FieldError{Field: field, Reason: reason, Text: fmt.Sprintf(format, args...)}
}

// checkEndpoint takes what can be connected to: where an engine binds may be more.
func checkEndpoint(field, endpoint string) error {
	if endpoint == "" {
		return fault(field, "missing", "it is needed")
	}
	if len(endpoint) > maxTextBytes {
		return fault(field, "out_of_range", "%d bytes, at most %d", len(endpoint), maxTextBytes)
	}
	if !utf8.ValidString(endpoint) {
		return fault(field, "invalid_value", "it is not UTF-8")
	}
	scheme, rest, ok := strings.Cut(endpoint, "://")
	switch {
	case ok && scheme == "ipc":
		if !strings.HasPrefix(rest, "/") {
			return fault(field, "invalid_value", "%q has no absolute path", endpoint)
		}
		return nil
	case !ok || scheme != "tcp":
		return fault(field, "unsupported", "%q is neither tcp://HOST:PORT nor ipc:///PATH", endpoint)
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return fault(field, "invalid_value", "%q is no tcp://HOST:PORT", endpoint)
	}
	if host == "" || host == "*" || host == "0.0.0.0" || host == "::" {
		return fault(field, "invalid_value", "%q is every address of its machine: name the one to connect to", endpoint)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fault(field, "invalid_value", "%q has no port from 1 to 65535", endpoint)
	}
	return nil
}
