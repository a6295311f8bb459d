// Package enginehash makes block hashes as vLLM does (vllm/v1/core/kv_cache_utils.py and
// vllm/utils/hashing.py, 0.32): by them an index can tell whether an engine hashes as its
// operator says, and a client can ask by hash for a prompt that no engine has seen.
//
// A block's hash is H((hash before, tokens, extra keys or None)), the first one's hash
// before it H(seed). The seed is PYTHONHASHSEED of the engine's process, or a constant
// where that is not set. H is SHA-256, or the 128 bits of XXH3, of what Python's pickle
// writes, protocol 5, or of canonical CBOR. Without a seed the algorithms with XXH3 begin
// with random bytes, and nobody else can make their hashes.
//
// What goes into a hash beside tokens is known here of cache salts only: events carry an
// adapter's name but not its path, which is in the hash, too.
//
// The package is pure.
package enginehash
