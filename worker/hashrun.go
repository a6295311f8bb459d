package worker

import (
	"github.com/mooncake-sidecar/sidecar/connector"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// hashRun is some of a request's block hashes: from number first on. A request
// that grows sends those of what it has not saved.
type hashRun struct {
	first int
	blob  kv.HashBlob
}

// hashesOf checks a part's hashes against the namespace.
func (r *rank) hashesOf(job *connector.StoreJob) (hashRun, error) {
	blob, err := r.blobOf(job.Hashes, job.HashLen)
	return hashRun{first: job.FirstHash, blob: blob}, err
}

// end returns how many hashes the request has, as far as is known.
func (h hashRun) end() int { return h.first + h.blob.Len() }

// has reports whether a chunk's hash and its parent's are there; a parent below
// 0 is that of a first chunk, which has none.
func (h hashRun) has(hash, parent int) bool {
	return hash >= h.first && hash < h.end() && (parent < 0 || parent >= h.first)
}

// at returns the request's hash i.
//
// REQUIRES: h.has(i, -1).
func (h hashRun) at(i int) kv.Hash { return h.blob.At(i - h.first) }
