// Package cudatest has a double of the CUDA driver for tests: testdata/double.c, which the
// tests compile with the machine's C compiler and load in the driver's place.
//
// The double works over host memory and checks how it is used: that only memory is
// touched that the device may touch, that nothing is read that the engine still
// writes, that nothing is asked of a lost context, that everything is given back
// before the context is. A Double's test fails at its end when a check did.
//
// The test is the engine: Memory, Chunk and Event are what an engine process shares.
package cudatest
