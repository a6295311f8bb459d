// Package hashdiff compares the block hashes that conductor/enginehash makes with those
// of the vLLM that the environment variable MOONCAKE_SIDECAR_PYTHON's interpreter has,
// for random requests. It has tests only.
package hashdiff
