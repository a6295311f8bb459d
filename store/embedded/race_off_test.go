//go:build !race

package embedded

// raceEnabled: the race detector is compiled in.
const raceEnabled = false
