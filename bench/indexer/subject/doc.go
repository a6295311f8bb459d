// Package subject is the process in which an indexer that is a Go library is measured:
// it takes commands, one a line of JSON, and answers each with a line. Making events and
// prompts is not timed. A process for each indexer keeps their heaps apart; it can be
// left alone while another works.
//
// The package is also imported from modules beside this one, each of which has a
// library of others, see ../peers.
package subject
