// Package coordinator decides which chunks of a request's prefix can be trusted:
// how long a hit is, which chunks a load must fetch, which chunks a store should
// keep, and under which hash the last chunk of each KV-cache group is found. It
// follows the rules of vLLM 0.32's MooncakeStoreCoordinator and of the
// single-type cache managers behind it, for every KV-cache-group kind that vLLM
// registers as prefix-cacheable. A kind it does not know is refused by name.
//
// It is pure: no I/O, no clock. What is stored is asked through an [ExistsFunc].
//
// # Vocabulary
//
// Lengths are in tokens. A hash index i stands for the chained hash over the
// tokens [0, (i+1)*HashBlockTokens). Chunk i of group g covers the tokens
// [i*BlockTokens, (i+1)*BlockTokens) and is keyed by the hash of its last hash
// block, index (i+1)*BlockTokens/HashBlockTokens - 1.
//
// The alignment is what a hit length must be a multiple of: the scheduler block,
// or the hash block where the engine's hybrid models allow a hit inside a block
// ("fine-grained"). In that mode the last chunk of a group may be stored under
// any hash boundary inside it, which is what the tail boundaries of a [Lookup]
// tell.
//
// # Rules
//
// Four rules find a group's own hit. Full attention takes the leading run of
// chunks. A sliding window takes the rightmost run as long as the window. Chunked
// local attention counts everything before the current chunk as given. Mamba
// takes the rightmost state. Equal groups are merged, full attention goes first,
// and a fixed point over the groups gives the joint hit.
package coordinator
