// Package coordcases reads questions to the coordinator as JSON and answers
// them, so that its answers can be compared with any other implementation's.
//
// The input is a JSON array of cases or one case a line; the output is one line
// a case. Every case has op, groups [{kind, b, w, eagle, tag}], L (scheduler
// block), h (hash block), use_eagle and fine. By op:
//
//   - find: N (hashes), exists (a list of [group, hash index], null for
//     everything), M (tokens), apply_eagle. Answer: hit, and masks with a list
//     of 0 and 1 a group.
//   - store_mask: T, start, nprompt (null for unknown), R (retention, null for
//     dense). Answer: masks with a list of booleans a group, null for all true.
//   - lookup_mask: T. Answer as for store_mask.
//   - lookup: tokens, N, exists. Answer: hit, and tails with a pair
//     [group, tokens] a group.
//
// Other fields are ignored, so that a file with expected answers can be read as
// it is. A case that the rules can't answer is answered with error and a
// sentence; a case that can't be read ends the run.
package coordcases
