package hostdev

import (
	"os"
	"strings"
)

// onlineNodes lists the machine's memory nodes, like "0" or "0-1".
const onlineNodes = "/sys/devices/system/node/online"

// hasOneNode reports whether it does not matter which thread touches a page
// first. Where it does, the engine's own threads must: the page would lie at
// ours. A machine that does not say has one.
func hasOneNode() bool {
	online, err := os.ReadFile(onlineNodes)
	return err != nil || isOneNode(string(online))
}

func isOneNode(online string) bool { return !strings.ContainsAny(strings.TrimSpace(online), ",-") }
