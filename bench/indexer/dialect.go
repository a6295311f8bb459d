package indexer

import "strconv"

// Dialect is how a service is started and spoken to.
type Dialect interface {
	Name() string
	// Command starts the service. It may keep files in the folder, which is empty.
	Command(folder string, port, threads int) (program string, args, env []string)
	// Register is the request that makes the service follow an engine's events.
	Register(engine int, endpoint string, blockTokens int) (path string, body []byte)
	// Forms of questions, and Question in one of them.
	Forms() []string
	Question(form string, tokens []uint32, blockTokens int) (path, contentType string, body []byte)
	// Held reads an answer: how many tokens each engine holds that holds any.
	Held(answer []byte) (map[string]int, error)
}

// Forms of questions.
const (
	formJSON   = "JSON"
	formBinary = "binary"
)

// appendTokens writes numbers with commas between.
func appendTokens(dst []byte, tokens []uint32) []byte {
	for i, token := range tokens {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(token), 10)
	}
	return dst
}
