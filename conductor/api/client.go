package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Client calls a conductor over HTTP. It is safe for concurrent use.
type Client struct {
	// Base is its address: http://127.0.0.1:13333.
	Base string
	// Token is shown, when it is not empty.
	Token string
	HTTP  *http.Client
}

var (
	// ErrUnreachable: nobody answers at the address.
	ErrUnreachable = errors.New("no conductor answers")
	// ErrRefused: the conductor has answered, and did not do what it was asked to.
	ErrRefused = errors.New("refused")
)

// maxAnswerBytes bounds an answer.
const maxAnswerBytes = 256 << 20

// Question is a query of Client.
type Question struct {
	Model, LoRA, Tenant, Instance, CacheSalt string
	// AdditionalSalt, when not nil, is that of the engines.
	AdditionalSalt *string
	// BlockTokens is the size of a block; 0 takes each engine's.
	BlockTokens int
	// Tokens are the prompt's, little-endian in 32 bits.
	Tokens []byte
}

// InstanceAnswer is what a query says of an instance.
type InstanceAnswer struct {
	LongestMatched int                   `json:"longest_matched"`
	DP             map[string]int        `json:"DP"`
	GPU            int                   `json:"GPU"`
	CPU            int                   `json:"CPU"`
	Disk           int                   `json:"DISK"`
	Complete       bool                  `json:"complete"`
	State          string                `json:"state"`
	CompleteSince  uint64                `json:"complete_since,omitempty"`
	Truncated      bool                  `json:"truncated,omitempty"`
	Foreign        bool                  `json:"foreign,omitempty"`
	Ranks          map[string]RankAnswer `json:"ranks"`
}

// RankAnswer is what it says of one rank, or of the store that ranks share ("shared").
type RankAnswer struct {
	TierAnswer
	Through       TierAnswer `json:"through"`
	State         string     `json:"state"`
	CompleteSince uint64     `json:"complete_since,omitempty"`
}

// TierAnswer has tokens by tier.
type TierAnswer struct {
	GPU  int `json:"GPU"`
	CPU  int `json:"CPU"`
	Disk int `json:"DISK"`
}

// ServiceAnswer is a service as /services shows it.
type ServiceAnswer = serviceView

// Query asks who holds how much of a prompt: by tenant, by instance.
func (c *Client) Query(ctx context.Context, q *Question) (answer map[string]map[string]InstanceAnswer, err error) {
	params := url.Values{"model": {q.Model}}
	for name, text := range map[string]string{"lora_name": q.LoRA, "tenant_id": q.Tenant, "instance_id": q.Instance, "cache_salt": q.CacheSalt} {
		if text != "" {
			params.Set(name, text)
		}
	}
	if q.AdditionalSalt != nil {
		params.Set("additional_salt", *q.AdditionalSalt)
	}
	if q.BlockTokens != 0 {
		params.Set("block_size", strconv.Itoa(q.BlockTokens))
	}
	err = c.call(ctx, http.MethodPost, "/query?"+params.Encode(), "application/octet-stream", q.Tokens, &answer)
	return answer, err
}

// Services lists what is registered.
func (c *Client) Services(ctx context.Context) ([]ServiceAnswer, error) {
	var answer struct{ Services []ServiceAnswer }
	err := c.call(ctx, http.MethodGet, "/services", "", nil, &answer)
	return answer.Services, err
}

// Stats asks for the index's figures.
func (c *Client) Stats(ctx context.Context) (stats Stats, err error) {
	err = c.call(ctx, http.MethodGet, "/stats", "", nil, &stats)
	return stats, err
}

// Get asks for something else in JSON.
func (c *Client) Get(ctx context.Context, path string, into any) error {
	return c.call(ctx, http.MethodGet, path, "", nil, into)
}

func (c *Client) call(ctx context.Context, method, target, kind string, body []byte, into any) error {
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.Base, "/")+target, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	request.Header.Set("Accept", "application/json")
	if kind != "" {
		request.Header.Set("Content-Type", kind)
	}
	if c.Token != "" {
		request.Header.Set("Authorization", "Bearer "+c.Token)
	}
	response, err := c.HTTP.Do(request)
	if err != nil {
		return fmt.Errorf("%w at %s: %w", ErrUnreachable, c.Base, err)
	}
	defer func() { _ = response.Body.Close() }() // it was read
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswerBytes))
	if err != nil {
		return fmt.Errorf("%w at %s: %w", ErrUnreachable, c.Base, err)
	}
	if response.StatusCode != http.StatusOK {
		var fault Fault
		if json.Unmarshal(answer, &fault) != nil || fault.Error == "" {
			fault.Error = shorten(strings.TrimSpace(string(answer)))
		}
		return fmt.Errorf("%w (%s): %s", ErrRefused, response.Status, fault.Error)
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("%w: %s is no conductor: %w", ErrUnreachable, c.Base, err)
	}
	return nil
}
