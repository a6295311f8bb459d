package router

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/fleet"
)

var (
	errTokenize = errors.New("tokenize")
	// errAsking: as many questions are asked as may be.
	errAsking = errors.New("engines are asked for too many")
	// errNoQuestion: what a request's token ids are can't be asked.
	errNoQuestion = errors.New("its token ids can't be asked for")
	// errTruncated: the engine takes a part of its tokens, and which is not known.
	errTruncated = errors.New("the engine truncates its prompt")
	errNoTokens  = errors.New("it has no tokens")
)

// tokenizer asks engines for token ids.
type tokenizer struct {
	fleet     *fleet.Fleet
	transport http.RoundTripper
	cache     *tokenCache
	// timeout of a question. It goes on when those who wait for it have gone, so that its
	// answer is there for the next.
	timeout time.Duration
	turn    atomic.Uint64
	// asking is how many questions there are, most how many there may be, and room what
	// their bytes are taken from.
	asking atomic.Int64
	most   int64
	room   *room
	// running questions are waited for by close, and end with lifetime. mu guards closed,
	// after which none begins.
	mu       sync.Mutex
	closed   bool
	running  sync.WaitGroup
	lifetime context.Context //nolint:containedctx // of questions, which outlive requests
	cancel   context.CancelFunc
}

func newTokenizer(f *fleet.Fleet, transport http.RoundTripper, maxBytes int64, room *room) *tokenizer {
	t := &tokenizer{fleet: f, transport: transport, cache: newTokenCache(maxBytes), timeout: maxTokenize, most: maxQuestions, room: room}
	t.lifetime, t.cancel = context.WithCancel(context.Background())
	return t
}

// close ends all questions.
func (t *tokenizer) close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.cancel()
	t.running.Wait()
}

const (
	// maxTokenize is how long a question may take.
	maxTokenize = 10 * time.Second
	// maxQuestions are asked at a time.
	maxQuestions = 1024
	// maxTokensBody bounds its answer.
	maxTokensBody = 64 << 20
)

// keyOf names a question's answer as long as no engine comes into use: who comes may be of
// the same name with another tokenizer, or template.
func (t *tokenizer) keyOf(question string) (key tokenKey) {
	sum := sha256.New()
	_, _ = sum.Write(binary.LittleEndian.AppendUint64(nil, t.fleet.Arrivals()))
	_, _ = io.WriteString(sum, question) // a hash takes all
	sum.Sum(key[:0])
	return key
}

// ids returns a request's token ids, as far as they are known until ctx ends.
func (t *tokenizer) ids(ctx context.Context, model, question, authorization string) ([]byte, error) {
	return t.cache.get(ctx, t.keyOf(question), func(answer func([]byte, error)) { //nolint:contextcheck // the question outlives who asks it
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.closed {
			answer(nil, fmt.Errorf("%w: the router ends", errTokenize))
			return
		}
		size := int64(len(question))
		if t.asking.Add(1) > t.most || !t.room.take(size) {
			t.asking.Add(-1)
			answer(nil, fmt.Errorf("%w: %w", errTokenize, errAsking))
			return
		}
		t.running.Go(func() {
			defer t.asking.Add(-1)
			defer t.room.give(size)
			answer(t.ask(model, question, authorization))
		})
	})
}

// ask asks one engine, and another if that one is gone.
func (t *tokenizer) ask(model, question, authorization string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(t.lifetime, t.timeout)
	defer cancel()
	all := t.fleet.Candidates(model, nil)
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: no engine serves %q", errTokenize, model)
	}
	var err error
	for range min(len(all), 2) {
		i := all[t.turn.Add(1)%uint64(len(all))].Engine
		var ids []byte
		if ids, err = t.askEngine(ctx, t.fleet.Engine(i), question, authorization); err == nil || ctx.Err() != nil {
			return ids, err
		}
	}
	return nil, err
}

func (t *tokenizer) askEngine(ctx context.Context, e *fleet.Engine, question, authorization string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, joinURL(e.URL, "/tokenize"), strings.NewReader(question))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errTokenize, err)
	}
	request.Header.Set("Content-Type", "application/json")
	authorize(request.Header, e, authorization)
	response, err := t.transport.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errTokenize, err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxTokensBody+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", errTokenize, err)
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%w: %s: %.200s", errTokenize, response.Status, answer)
	case len(answer) > maxTokensBody:
		return nil, fmt.Errorf("%w: an answer of more than %d bytes", errTokenize, maxTokensBody)
	}
	b, err := parseBody(answer)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errTokenize, err)
	}
	ids, err := parseIDs(b.get("tokens"))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errTokenize, err)
	}
	return ids, nil
}

// questionOf returns what /tokenize is to be asked for a request's token ids: what is in it
// is all that they depend on, for answers are remembered by it.
func questionOf(path string, b *body) (question string, err error) {
	copied := func(names ...string) (fields []field) {
		for _, name := range names {
			if b.given(name) {
				fields = append(fields, field{name, b.get(name)})
			}
		}
		return fields
	}
	empty := &body{}
	switch path {
	case pathCompletions:
		prompt := b.get("prompt")
		if len(prompt) == 0 || prompt[0] != '"' || b.given("suffix") || b.given("prompt_embeds") {
			return "", errNoQuestion
		}
		return string(empty.with(copied("model", "prompt", "add_special_tokens")...)), nil
	case pathChat:
		if !b.given("messages") {
			return "", errNoQuestion
		}
		fields := append(copied("model"), field{"messages", withReasoning(b.get("messages"))})
		fields = append(fields, copied("tools", "add_generation_prompt", "continue_final_message", "add_special_tokens",
			"chat_template", "media_io_kwargs", "mm_processor_kwargs")...)
		kwargs, err := templateKwargs(b)
		if err != nil {
			return "", err
		}
		if kwargs != nil {
			fields = append(fields, field{"chat_template_kwargs", kwargs})
		}
		return string(empty.with(fields...)), nil
	}
	return "", errNoQuestion
}

// withReasoning gives the messages of a chat that call what was thought reasoning_content,
// as chats may, the name that /tokenize knows. What it can't read it leaves to the engine.
func withReasoning(messages []byte) []byte {
	const old, now = "reasoning_content", "reasoning"
	if !bytes.Contains(messages, []byte(old)) {
		return messages
	}
	out := []byte{'['}
	all := eachOf(messages, func(message []byte) bool {
		m, err := parseBody(message)
		if err != nil && message[0] == '{' {
			return false
		}
		if err == nil && m.get(old) != nil {
			changes := []field{{old, nil}}
			if m.given(old) && !m.given(now) {
				changes = append(changes, field{now, m.get(old)})
			}
			message = m.with(changes...)
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, message...)
		return true
	})
	if !all {
		return messages
	}
	return append(out, ']')
}

// hasMedia tells whether messages have something in them that is no text. What it can't read
// it takes for that.
func hasMedia(messages []byte) bool {
	maybe := false // nearly all have none of these, and need no reading
	for _, word := range [...]string{`"image`, `"audio`, `"video`, `"input_`, `"file`} {
		maybe = maybe || bytes.Contains(messages, []byte(word))
	}
	return maybe && !eachOf(messages, func(message []byte) bool {
		m, err := parseBody(message)
		if err != nil {
			return false
		}
		parts := m.get("content")
		return len(parts) == 0 || parts[0] != '[' || eachOf(parts, isText)
	})
}

// isText tells whether a part of a message is one of text.
func isText(part []byte) bool {
	if part[0] == '"' {
		return true
	}
	p, err := parseBody(part)
	return err == nil && slices.Contains([]string{"text", "input_text", "output_text", "refusal", "thinking"}, p.text("type"))
}

// idsOf are the token ids that a request brings with it; nil: none.
func idsOf(path string, b *body) []byte {
	of := b.get("prompt")
	if path == pathChat {
		// Ids of whoever did the prefill; only where messages would be rendered from them alone.
		wish, err := parseBody(b.get(transferParams))
		if err != nil || b.isTrue("echo") || hasMedia(b.get("messages")) {
			return nil
		}
		of = wish.get("prompt_token_ids")
	}
	ids, err := parseIDs(of)
	if err != nil {
		return nil
	}
	return ids
}

// templateKwargs are what a chat's template is given: /tokenize takes them by this field
// alone, chats by fields of their own as well.
func templateKwargs(b *body) ([]byte, error) {
	var changes []field
	for _, name := range [...]string{"documents", "reasoning_effort"} {
		if b.given(name) {
			changes = append(changes, field{name, b.get(name)})
		}
	}
	own := &body{raw: []byte("{}")}
	if b.given("chat_template_kwargs") {
		var err error
		if own, err = parseBody(b.get("chat_template_kwargs")); err != nil {
			return nil, err
		}
	} else if changes == nil {
		return nil, nil
	}
	if effort := b.text("reasoning_effort"); effort != "" && own.get("enable_thinking") == nil {
		thinking := "true"
		if effort == "none" {
			thinking = "false"
		}
		changes = append(changes, field{"enable_thinking", []byte(thinking)})
	}
	return own.with(changes...), nil
}
