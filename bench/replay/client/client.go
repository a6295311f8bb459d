package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const maxErrorBytes = 2 << 10

// idle connections are dropped before the server drops them (vLLM's after 5 s): a
// request on one that the server has just closed would fail.
const idle = 2 * time.Second

// Options of a client.
type Options struct {
	// URL of the server, with or without /v1.
	URL   string
	Model string
	// APIKey is sent as a bearer token unless it is empty.
	APIKey string
	// Silence is how long a request waits for its next token; 0 is no limit.
	Silence time.Duration
	// Transport carries requests; nil is one of the client's own.
	Transport http.RoundTripper
}

// Client asks one server. It is safe for use by many goroutines.
type Client struct {
	options Options
	base    string
	http    *http.Client
}

// New prepares a client; nothing is sent.
func New(options Options) *Client {
	if options.Transport == nil {
		options.Transport = &http.Transport{
			Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 1024, IdleConnTimeout: idle, DisableCompression: true,
		}
	}
	base := strings.TrimSuffix(strings.TrimSuffix(options.URL, "/"), "/v1")
	return &Client{options: options, base: base, http: &http.Client{Transport: options.Transport}}
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Body encodes a completion's request: exactly output tokens, greedily.
func (c *Client) Body(prompt []uint32, output int) []byte {
	model, err := json.Marshal(c.options.Model)
	if err != nil {
		panic("BUG: a string that can't be encoded: " + err.Error())
	}
	b := make([]byte, 0, 256+len(model)+7*len(prompt))
	b = append(append(b, `{"model":`...), model...)
	b = append(b, `,"prompt":[`...)
	for i, token := range prompt {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(token), 10)
	}
	n := strconv.Itoa(output)
	return append(b, `],"max_tokens":`+n+`,"min_tokens":`+n+`,"ignore_eos":true,"temperature":0,"stream":true,`+
		`"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`...)
}

// Complete sends a body that Body made, for a prompt of so many tokens and an
// output of so many, and reads the answer up to its end. token is called for each
// event that brings tokens, with their number, when it has come. The answer is as
// far as it came also beside an error, which is an Error.
func (c *Client) Complete(ctx context.Context, body []byte, prompt, output int, token func(n int)) (Answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := errors.New("no token came in time")
	watch := time.AfterFunc(1<<62, func() { cancel(silence) })
	defer watch.Stop()
	rearm := func() {
		if c.options.Silence > 0 {
			watch.Reset(c.options.Silence)
		}
	}
	rearm()
	answer, err := c.complete(ctx, body, output, func(n int) {
		rearm()
		token(n)
	})
	switch {
	case err == nil:
		err = answer.check(prompt, output)
	case errors.Is(context.Cause(ctx), silence):
		err = fail(Stalled, fmt.Errorf("no token for %v", c.options.Silence))
	case ctx.Err() != nil:
		err = fail(Interrupted, ctx.Err())
	}
	return answer, err
}

func (c *Client) complete(ctx context.Context, body []byte, output int, token func(n int)) (Answer, error) {
	response, err := c.send(ctx, http.MethodPost, "/v1/completions", body)
	if err != nil {
		return Answer{CachedTokens: Unknown}, err
	}
	defer response.Body.Close()
	kind, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if err != nil || kind != "text/event-stream" {
		return Answer{CachedTokens: Unknown}, fail(Garbage, fmt.Errorf("an answer of type %q, a stream was asked for", response.Header.Get("Content-Type")))
	}
	return readAnswer(response.Body, output, token)
}

// send returns an answer with status 200; the caller closes its body.
func (c *Client) send(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, fail(Unreachable, err)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if c.options.APIKey != "" {
		request.Header.Set("Authorization", "Bearer "+c.options.APIKey)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, fail(Unreachable, err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxErrorBytes)) // what came says what there is to say
	return nil, &Error{Kind: kindOfStatus(response.StatusCode), Status: response.StatusCode, Err: fmt.Errorf("%s %s: %q", method, path, clip(text))}
}

func kindOfStatus(status int) Kind {
	switch {
	case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
		return Refused
	case status >= 400 && status < 500:
		return BadRequest
	}
	return ServerError
}
