// Package trace reads request traces in Mooncake's format: one JSON object a
// line with timestamp (ms), input_length and output_length (tokens) and hash_ids,
// one id for every 512 tokens of the prompt. Equal ids stand for equal prefixes.
//
// The reader is strict. What it can't vouch for is an error that names the line
// and the field, for a figure from a misread trace is worse than none. ReadAll is
// for who would rather have what there is, with every fault in a list.
package trace
