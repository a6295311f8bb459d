// Package coupled simulates engines that prefill and decode on the same node, the
// baseline of the papers: an engine that stops decoding to prefill, one that
// finishes its batch first, and one that prefills in chunks beside decoding.
package coupled
