// Package mooncaketest has what tests of store/mooncake need: a cluster in
// memory whose engines fail on request, the behaviour that every engine must
// show, and real masters and clients from Mooncake's wheel.
package mooncaketest
