// Package node is one machine of the simulated cluster: its prefix cache, which is
// the production index with a production eviction policy, and its batch of
// sequences being decoded.
package node
