package client

import (
	"errors"
	"fmt"
	"io"
)

// Unknown stands for a count that the server does not tell.
const Unknown = -1

// Answer is what a completion gave.
type Answer struct {
	// OutputTokens that came.
	OutputTokens int
	// PromptTokens as the server counts them, Unknown if it does not say.
	PromptTokens int
	// CachedTokens of the prompt, Unknown if the server does not say.
	CachedTokens int
}

// readAnswer reads a stream up to its closing mark. Errors are Errors.
func readAnswer(stream io.Reader, output int, token func(n int)) (Answer, error) {
	answer := Answer{PromptTokens: Unknown, CachedTokens: Unknown}
	lines := newEvents(stream, maxOtherBytes+output*maxBytesPerToken)
	for {
		data, err := lines.next()
		switch {
		case errors.Is(err, io.EOF):
			return answer, fail(CutOff, fmt.Errorf("the stream ended behind %d tokens without its closing mark: %w", answer.OutputTokens, io.ErrUnexpectedEOF))
		case errors.Is(err, io.ErrUnexpectedEOF):
			return answer, fail(CutOff, fmt.Errorf("the connection ended behind %d tokens: %w", answer.OutputTokens, err))
		case err != nil:
			return answer, fail(kindOfRead(err), fmt.Errorf("reading the stream behind %d tokens: %w", answer.OutputTokens, err))
		case string(data) == "[DONE]":
			return answer, nil
		}
		c, err := parseChunk(data)
		if err != nil {
			return answer, err
		}
		if n := answer.add(c); n > 0 {
			token(n)
		}
		if len(c.Choices) == 1 {
			if reason := c.Choices[0].FinishReason; reason != nil && (*reason == "error" || *reason == "abort") {
				return answer, fail(Failed, fmt.Errorf("the server ended the request: %s", *reason))
			}
		}
	}
}

// add counts a chunk; it returns how many tokens are new in it. A server that
// counts as it goes is believed; else an event with a choice is one token, but for
// an empty last one.
func (a *Answer) add(c *chunk) int {
	n := 0
	if len(c.Choices) == 1 && (c.Choices[0].Text != "" || c.Choices[0].FinishReason == nil) {
		n = 1
	}
	if u := c.Usage; u != nil {
		a.PromptTokens = u.PromptTokens
		if cached := u.cached(); cached != Unknown {
			a.CachedTokens = cached
		}
		n = max(0, u.CompletionTokens-a.OutputTokens)
		// The sum behind the last token came is no token's event.
		if len(c.Choices) == 0 {
			a.OutputTokens = u.CompletionTokens
			return 0
		}
	}
	a.OutputTokens += n
	return n
}

// check compares an answer with what was asked for.
func (a *Answer) check(prompt, output int) error {
	switch {
	case a.PromptTokens != Unknown && a.PromptTokens != prompt:
		return fail(WrongLength, fmt.Errorf("the server counts %d tokens in the prompt, %d were sent", a.PromptTokens, prompt))
	case a.OutputTokens != output:
		return fail(WrongLength, fmt.Errorf("%d tokens came, %d were asked for", a.OutputTokens, output))
	case a.CachedTokens > prompt:
		return fail(Garbage, fmt.Errorf("%d of the prompt's %d tokens cached", a.CachedTokens, prompt))
	}
	return nil
}

// kindOfRead tells a stream that is too long from a connection that broke.
func kindOfRead(err error) Kind {
	if isTooLong(err) {
		return Garbage
	}
	return CutOff
}
