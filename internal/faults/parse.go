package faults

import (
	"fmt"
	"strings"
	"time"

	"github.com/mooncake-sidecar/sidecar/worker"
)

// Variable is the environment variable that a faulty build reads.
const Variable = "MOONCAKE_SIDECAR_FAULTS"

// Parse reads a list such as "copy_delay=50ms,ignore_cancel=1,no_verify=1".
func Parse(text string) (worker.Faults, error) {
	var f worker.Faults
	for item := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(item), "=")
		var err error
		switch name {
		case "":
		case "copy_delay":
			if f.CopyDelay, err = time.ParseDuration(value); err != nil {
				return f, fmt.Errorf("%s: copy_delay: %w", Variable, err)
			}
		case "ignore_cancel":
			f.IgnoreCancel = value != "0"
		case "no_verify":
			f.NoVerify = value != "0"
		default:
			return f, fmt.Errorf("%s: unknown fault %q; known: copy_delay, ignore_cancel, no_verify", Variable, name)
		}
	}
	return f, nil
}
