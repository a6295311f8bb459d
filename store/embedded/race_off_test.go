//go:build !race

package embedded

// raceEnabled: some runs have watchers.
const raceEnabled = false
