package control

import (
	"crypto/sha256"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mooncake-sidecar/sidecar/store/embedded"
)

// Limits of a request's fields.
const (
	// MaxHashes bounds the hashes of one call.
	MaxHashes = 1 << 20
	// MaxChainHashes bounds them where whole chains are meant: the store looks
	// through all of its records once for each call.
	MaxChainHashes = 4096
	// MaxTagBytes bounds a salt tag, as it does those that chunks are stored with.
	MaxTagBytes = 4096
	// MaxPrefixes bounds TopPrefixes.
	MaxPrefixes = 1000
	// MaxTTLSeconds bounds a time to live: ten years.
	MaxTTLSeconds = 10 * 365 * 24 * 3600
	// batchKeys is how many chunks the store is given at a time.
	batchKeys = 4096
)

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// checkTag checks a salt tag of a request.
func checkTag(tag string) error {
	if tag == "" {
		return invalid("tag: empty; name the salt tag that is meant")
	}
	if len(tag) > MaxTagBytes {
		return invalid("tag of %d bytes; salt tags have up to %d", len(tag), MaxTagBytes)
	}
	if !utf8.ValidString(tag) {
		return invalid("tag %.32q is not UTF-8", tag)
	}
	return nil
}

func checkTTL(seconds uint64) error {
	if seconds > MaxTTLSeconds {
		return invalid("ttl_seconds: %d; want up to %d, or 0 for no end", seconds, MaxTTLSeconds)
	}
	return nil
}

// namespace finds the namespace with a digest.
func (s *Service) namespace(digest []byte) (*embedded.NamespaceEntry, error) {
	if len(digest) != sha256.Size {
		return nil, invalid("namespace: digest of %d bytes, want %d; ListNamespaces shows them", len(digest), sha256.Size)
	}
	for _, entry := range s.cfg.Store.Namespaces() {
		if entry.Spec.Digest() == [sha256.Size]byte(digest) {
			return &entry, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "no namespace with digest %.12x; ListNamespaces shows those that are here", digest)
}
