package router

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
)

// The paths whose prompts are understood.
const (
	pathCompletions = "/v1/completions"
	pathChat        = "/v1/chat/completions"
)

// Headers by which clients say what they want of the router.
const (
	// headerTTFT and headerTBT are objectives: seconds, or with a unit (250ms).
	headerTTFT = "X-Mooncake-Ttft"
	headerTBT  = "X-Mooncake-Tbt"
	// headerPriority: the least goes first; without it 0.
	headerPriority = "X-Mooncake-Priority"
	// headerTenant is whose cache it is; without it the default one.
	headerTenant = "X-Mooncake-Tenant"
	// headerContext names a context whose prefix is put before the prompt.
	headerContext = "X-Mooncake-Context"
)

// Headers by which the router says what it did.
const (
	headerEngine   = "X-Mooncake-Engine"
	headerDecision = "X-Mooncake-Decision"
	headerCached   = "X-Mooncake-Cached-Tokens"
)

// wishes are what a request's headers say.
type wishes struct {
	ttft, tbt time.Duration
	priority  int
	tenant    string
	context   string
	// arrived is when all of the request had come.
	arrived time.Time
}

var errWish = errors.New("header")

// maxPriority bounds priorities on both sides, so that they can be weighed.
const maxPriority = 1_000_000

// maxName bounds names that clients give.
const maxName = 256

// wishesOf reads the headers, with what stands for those that are not there.
func wishesOf(h http.Header, c *Config) (w wishes, err error) {
	w = wishes{ttft: c.TTFT, tbt: c.TBT, tenant: prefixindex.DefaultTenant, context: h.Get(headerContext)}
	for name, to := range map[string]*time.Duration{headerTTFT: &w.ttft, headerTBT: &w.tbt} {
		if text := h.Get(name); text != "" {
			if *to, err = parseObjective(text); err != nil {
				return w, fmt.Errorf("%w %s: %w", errWish, name, err)
			}
		}
	}
	if text := h.Get(headerPriority); text != "" {
		if w.priority, err = strconv.Atoi(text); err != nil || w.priority < -maxPriority || w.priority > maxPriority {
			return w, fmt.Errorf("%w %s: %.40q; want a whole number of %d to %d", errWish, headerPriority, text, -maxPriority, maxPriority)
		}
	}
	if text := h.Get(headerTenant); text != "" {
		w.tenant = text
	}
	if len(w.tenant) > maxName || len(w.context) > maxName {
		return w, fmt.Errorf("%w: a name of more than %d bytes", errWish, maxName)
	}
	return w, nil
}

// parseObjective reads a duration: seconds, or with a unit. 0 is none.
func parseObjective(text string) (time.Duration, error) {
	if s, err := strconv.ParseFloat(text, 64); err == nil {
		if !(s >= 0 && s <= math.MaxInt32) {
			return 0, fmt.Errorf("%.40q is no duration", text) //nolint:err113 // it is wrapped
		}
		return time.Duration(s * float64(time.Second)), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%.40q; want seconds, or 250ms", text) //nolint:err113 // it is wrapped
	}
	return d, nil
}

// request is what is placed.
type request struct {
	wishes
	path string
	// model as the client names it; base and lora as the index does.
	model, base, lora string
	// salt is the request's cache_salt.
	salt string
	// tokens are the prompt's, little-endian in 32 bits; nil: they are not known. count is
	// how many there are, or about.
	tokens []byte
	count  int
	// why the tokens are not known, for who asks.
	why string
	// hashes of its prefixes, for the history.
	hashes []uint64
	// streamed: its tokens come one after the other.
	streamed bool
	// authorization of who asked, for questions to engines that have no key of ours.
	authorization string
	// whole: the tokens are all that goes into it, no images.
	whole bool
}

// charactersOfToken is about how many bytes of text make a token.
const charactersOfToken = 4

// describe fills in what a body says.
func (r *request) describe(path string, b *body) {
	r.path, r.model, r.salt = path, b.text("model"), b.text("cache_salt")
	r.streamed = b.isTrue("stream")
	r.whole = true
	prompt := b.get("prompt")
	if path == pathChat {
		prompt = b.get("messages")
	}
	r.count = 1 + len(prompt)/charactersOfToken
	if path == pathCompletions || path == pathChat {
		r.setTokens(idsOf(path, b))
	}
}

// understood tells whether the request's body was parsed, and is one of a prompt.
func (r *request) understood() bool { return r.path == pathCompletions || r.path == pathChat }

// setTokens says that the token ids are known.
func (r *request) setTokens(ids []byte) {
	if len(ids) == 0 {
		return
	}
	r.tokens, r.count, r.why = ids, len(ids)/tokenBytes, ""
}

// truncated tells whether an engine takes a part of the request's tokens only, and has them
// not known then. most is how many tokens the model takes, 0 where that is not told.
func (r *request) truncated(b *body, most int) bool {
	if !b.given("truncate_prompt_tokens") {
		return false
	}
	left := b.integer("truncate_prompt_tokens", 0)
	if left < 0 { // as many as leave room for an answer
		left = most - 1
	}
	if r.count <= left {
		return false
	}
	r.tokens, r.why = nil, errTruncated.Error()
	if left > 0 {
		r.count = left
	}
	return true
}

// cached is how many tokens need not be computed where so many are there: the last one
// always is.
func (r *request) cached(tokens int) int { return max(min(tokens, r.count-1), 0) }

// hash fills in the prefixes' hashes.
func (r *request) hash(seed uint64) {
	var length [8]byte
	binary.LittleEndian.PutUint64(length[:], uint64(len(r.tenant)))
	r.hashes = prefixHashes(seed, string(length[:])+r.tenant+r.model+"\x00"+r.salt, r.tokens, r.hashes[:0])
}
