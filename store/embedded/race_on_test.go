//go:build race

package embedded

// raceEnabled: every run has watchers.
const raceEnabled = true
