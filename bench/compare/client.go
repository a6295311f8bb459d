package compare

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Limits of what an engine sends.
const (
	maxEventBytes   = 4 << 20
	maxMetricsBytes = 32 << 20
	maxErrorBytes   = 2 << 10
)

// Request is a completion to ask for.
type Request struct {
	Prompt    []int
	MaxTokens int
	// Claim tells the null connector to claim a hit.
	Claim bool
}

// Token is a generated one.
type Token struct {
	ID string
	// LogProb is its own log-probability, Margin what it leads the next best one by.
	LogProb, Margin float64
}

// Answer is what a completion gave.
type Answer struct {
	// TTFT is from the request's first byte to the first token's event.
	TTFT time.Duration
	// Gaps are between events of tokens.
	Gaps         []time.Duration
	Tokens       []Token
	CachedTokens int
}

// Client speaks an engine's OpenAI API.
type Client struct {
	base string
	http *http.Client
}

// NewClient serves an engine at a base URL.
func NewClient(base string) *Client {
	return &Client{base: base, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}}
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// completionRequest is the body of a completion.
type completionRequest struct {
	Model            string          `json:"model"`
	Prompt           []int           `json:"prompt"`
	MaxTokens        int             `json:"max_tokens"`
	Temperature      float64         `json:"temperature"`
	LogProbs         int             `json:"logprobs"`
	TokensAsIDs      bool            `json:"return_tokens_as_token_ids"`
	IgnoreEOS        bool            `json:"ignore_eos"`
	Stream           bool            `json:"stream"`
	StreamOptions    map[string]bool `json:"stream_options"`
	KVTransferParams map[string]bool `json:"kv_transfer_params,omitempty"`
}

// event is one of a streamed completion.
type event struct {
	Choices []struct {
		LogProbs *struct {
			Tokens        []string             `json:"tokens"`
			TokenLogProbs []float64            `json:"token_logprobs"`
			TopLogProbs   []map[string]float64 `json:"top_logprobs"`
		} `json:"logprobs"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Details *struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Complete streams a greedy completion.
func (c *Client) Complete(ctx context.Context, request Request) (Answer, error) {
	body := completionRequest{
		Model: "tiny", Prompt: request.Prompt, MaxTokens: request.MaxTokens, LogProbs: 2, TokensAsIDs: true, IgnoreEOS: true,
		Stream: true, StreamOptions: map[string]bool{"include_usage": true},
	}
	if request.Claim {
		body.KVTransferParams = map[string]bool{"null_hit": true}
	}
	encoded, err := json.Marshal(body)
	if err != nil {
		return Answer{}, fmt.Errorf("encoding a completion: %w", err)
	}
	begin := time.Now()
	response, err := c.send(ctx, http.MethodPost, "/v1/completions", encoded)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	return readAnswer(response.Body, begin, time.Now)
}

// readAnswer reads the events of a completion up to the closing mark.
func readAnswer(stream io.Reader, begin time.Time, now func() time.Time) (Answer, error) {
	var answer Answer
	var last time.Time
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, maxEventBytes)
	for lines.Scan() {
		payload, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		if string(payload) == "[DONE]" {
			if len(answer.Tokens) == 0 {
				return Answer{}, errors.New("the engine generated no token")
			}
			return answer, nil
		}
		at := now()
		tokens, cached, err := readEvent(payload)
		if err != nil {
			return Answer{}, err
		}
		if cached >= 0 {
			answer.CachedTokens = cached
		}
		if len(tokens) == 0 {
			continue
		}
		if last.IsZero() {
			answer.TTFT = at.Sub(begin)
		} else {
			answer.Gaps = append(answer.Gaps, at.Sub(last))
		}
		last = at
		answer.Tokens = append(answer.Tokens, tokens...)
	}
	if err := lines.Err(); err != nil {
		return Answer{}, fmt.Errorf("reading a completion: %w", err)
	}
	return Answer{}, fmt.Errorf("the engine's answer ended early: %w", io.ErrUnexpectedEOF)
}

// readEvent returns the event's tokens, and how many of the prompt's were cached,
// -1 when it does not say.
func readEvent(payload []byte) (tokens []Token, cached int, err error) {
	var e event
	if err := json.Unmarshal(payload, &e); err != nil {
		return nil, 0, fmt.Errorf("decoding an event of a completion: %w", err)
	}
	if e.Error != nil {
		return nil, 0, fmt.Errorf("the engine failed the request: %s", e.Error.Message)
	}
	cached = -1
	if e.Usage != nil && e.Usage.Details != nil {
		cached = e.Usage.Details.CachedTokens
	}
	for _, choice := range e.Choices {
		if choice.FinishReason == "error" {
			return nil, 0, errors.New("the engine ended the request with an error")
		}
		seen := choice.LogProbs
		if seen == nil {
			continue
		}
		if len(seen.TokenLogProbs) != len(seen.Tokens) || len(seen.TopLogProbs) != len(seen.Tokens) {
			return nil, 0, fmt.Errorf("an event with %d tokens and %d log-probabilities", len(seen.Tokens), len(seen.TokenLogProbs))
		}
		for i, id := range seen.Tokens {
			token := Token{ID: id, LogProb: seen.TokenLogProbs[i], Margin: -1}
			for other, p := range seen.TopLogProbs[i] {
				if lead := token.LogProb - p; other != id && (token.Margin < 0 || lead < token.Margin) {
					token.Margin = max(lead, 0)
				}
			}
			tokens = append(tokens, token)
		}
	}
	return tokens, cached, nil
}

// Reset empties the engine's own prefix cache and, with external, its store.
func (c *Client) Reset(ctx context.Context, external bool) error {
	path := "/reset_prefix_cache"
	if external {
		path += "?reset_external=true"
	}
	response, err := c.send(ctx, http.MethodPost, path, nil)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// Idle tells whether the engine neither runs nor keeps a request, nor holds a block.
func (c *Client) Idle(ctx context.Context) (bool, error) {
	response, err := c.send(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	page, err := io.ReadAll(io.LimitReader(response.Body, maxMetricsBytes))
	if err != nil {
		return false, fmt.Errorf("reading the engine's metrics: %w", err)
	}
	sums, err := sumSamples(string(page), "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
	if err != nil {
		return false, err
	}
	return sums == 0, nil
}

// sumSamples adds up the samples of the named series, each of which must be there.
func sumSamples(page string, names ...string) (float64, error) {
	sum := 0.0
	for _, name := range names {
		found := false
		for line := range strings.Lines(page) {
			rest, ok := strings.CutPrefix(line, name)
			if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
				continue
			}
			fields := strings.Fields(rest[strings.LastIndexByte(rest, '}')+1:])
			if len(fields) == 0 {
				return 0, fmt.Errorf("the metric %s has no value", name)
			}
			value, err := strconv.ParseFloat(fields[0], 64)
			if err != nil {
				return 0, fmt.Errorf("the metric %s: %w", name, err)
			}
			sum, found = sum+value, true
		}
		if !found {
			return 0, fmt.Errorf("the engine has no metric %s", name)
		}
	}
	return sum, nil
}

// send returns a response with status 200; the caller closes its body.
func (c *Client) send(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("asking the engine: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBytes))
		response.Body.Close()
		return nil, fmt.Errorf("%s %s: status %d: %s", method, path, response.StatusCode, text)
	}
	return response, nil
}
