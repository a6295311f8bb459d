package client

import (
	"encoding/json"
	"errors"
	"fmt"
)

// maxCount bounds what a server counts.
const maxCount = 1 << 31

// chunk is one event of a streamed completion.
type chunk struct {
	Choices []choice        `json:"choices"`
	Usage   *usage          `json:"usage"`
	Error   json.RawMessage `json:"error"`
}

type choice struct {
	Index        int     `json:"index"`
	Text         string  `json:"text"`
	FinishReason *string `json:"finish_reason"`
}

type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	Details          *struct {
		CachedTokens *int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// parseChunk decodes an event.
func parseChunk(data []byte) (*chunk, error) {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, fail(Garbage, fmt.Errorf("an event that is no completion: %w: %q", err, clip(data)))
	}
	if len(c.Error) > 0 && string(c.Error) != "null" {
		return nil, told(c.Error)
	}
	if c.Choices == nil && c.Usage == nil {
		return nil, fail(Garbage, fmt.Errorf("an event without choices and usage: %q", clip(data)))
	}
	if len(c.Choices) > 1 || len(c.Choices) == 1 && c.Choices[0].Index != 0 {
		return nil, fail(Garbage, errors.New("several choices, one was asked for"))
	}
	if u := c.Usage; u != nil && !u.sane() {
		return nil, fail(Garbage, fmt.Errorf("a usage that can't be: %q", clip(data)))
	}
	return &c, nil
}

// told is an error in the stream. vLLM answers 200 before it has looked at the
// prompt, and says then with which status it would have refused it.
func told(text json.RawMessage) error {
	e := &Error{Kind: Failed, Err: fmt.Errorf("the server says %s", clip(text))}
	var detail struct {
		Code int `json:"code"`
	}
	if err := json.Unmarshal(text, &detail); err == nil {
		if kind := kindOfStatus(detail.Code); kind != ServerError {
			e.Kind, e.Status = kind, detail.Code
		}
	}
	return e
}

func (u *usage) sane() bool {
	ok := func(n int) bool { return n >= 0 && n < maxCount }
	return ok(u.PromptTokens) && ok(u.CompletionTokens) && (u.cached() == Unknown || ok(u.cached()))
}

// cached is Unknown when the server does not say.
func (u *usage) cached() int {
	if u.Details == nil || u.Details.CachedTokens == nil {
		return Unknown
	}
	if n := *u.Details.CachedTokens; n >= 0 {
		return n
	}
	return maxCount // not sane
}

// clip keeps a message short.
func clip(text []byte) []byte {
	const most = 200
	if len(text) <= most {
		return text
	}
	return append(text[:most:most], "..."...)
}
