// Package vllmdiff compares the coordinator and the pool keys with an installed
// vLLM: it makes random cases, lets vLLM answer them through answer.py, and
// reduces a case on which the two differ. Its tests run where the environment
// variable MOONCAKE_SIDECAR_PYTHON names an interpreter that has vLLM.
package vllmdiff
