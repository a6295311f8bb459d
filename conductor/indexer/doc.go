// Package indexer is the conductor's index as a whole: which services there are
// (conductor/registry), a feed for each (conductor/feed), and the index that they fill
// (conductor/prefixindex). It answers who holds how much of a prompt, and with each answer
// how much of what its engine has told is known.
//
// # Stores
//
// A service of type Mooncake is a store: mooncake_master's, which all instances of its
// tenant and model can load from, or, with rank -1, that of a node (our lookupd's), which
// the ranks of its instance share. A store has rows of its own only where there are no
// engines.
//
// # Snapshots
//
// A snapshot has the services, what each has told, and where its stream had got to. Whoever
// begins with one asks each publisher for what was applied last, and goes on from there if
// it is the same. While one is written events wait and queries are answered. It also has
// the seed of the index's digests, so it is as secret as that.
package indexer
