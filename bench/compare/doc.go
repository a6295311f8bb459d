// Package compare measures KV-cache stores behind one engine against each other:
// the engine alone, a null connector, vLLM's in-tree Mooncake connector, LMCache
// and this project's.
//
// Every system is an engine of its own with what its connector needs, started by
// hosts/host.py with the same settings. All of them live at the same time, and one
// works at a time: before a system is asked, it and the one before it have become
// quiet. What is compared within a pair is therefore measured within seconds, in an
// order that is drawn anew for every pair.
//
// Three parts:
//
//	warm     store-warm less engine-warm time to first token, of the same prompt
//	cold     time to first token of a prompt that nobody knows, against the engine alone
//	overlap  long prompts that arrive while the stores of earlier ones are under way,
//	         with a request decoding beside them: time to first token and CPU time
//
// The null connector claims a hit and has it at once. What it adds to engine-warm is
// the floor that vLLM itself sets for an asynchronous load.
//
// Samples are kept raw; every figure is computed from them (report.go), so that an
// interrupted run can be taken up again.
package compare
