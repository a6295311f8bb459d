package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Limits of what a server says about itself.
const (
	maxPageBytes = 32 << 20
	maxPageLine  = 1 << 20
)

// askLimit is how long a question about the server itself may take.
const askLimit = 30 * time.Second

// Vocabularies that are tried, the largest first. More tokens tell blocks no better
// apart, and large ids are where models keep those that are no text.
const (
	largestVocabulary  = 1 << 15
	smallestVocabulary = 1 << 6
)

// ErrUntold: the server does not say what was asked for.
var ErrUntold = errors.New("the server does not say")

// Model is what a server says of a model.
type Model struct {
	Name string
	// MaxTokens of prompt and output together, 0 if the server does not say.
	MaxTokens int
}

// Models lists what the server serves.
func (c *Client) Models(ctx context.Context) ([]Model, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	response, err := c.send(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return readModels(response.Body)
}

func readModels(page io.Reader) ([]Model, error) {
	var list struct {
		Data []struct {
			ID          string `json:"id"`
			MaxModelLen int    `json:"max_model_len"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(page, maxPageBytes)).Decode(&list); err != nil {
		return nil, fail(Garbage, fmt.Errorf("the list of models: %w", err))
	}
	models := make([]Model, len(list.Data))
	for i, m := range list.Data {
		models[i] = Model{Name: m.ID, MaxTokens: max(0, m.MaxModelLen)}
	}
	return models, nil
}

// BlockTokens asks the server for the tokens of its cache's block, which vLLM has
// among its metrics.
func (c *Client) BlockTokens(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	response, err := c.send(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	return readBlockTokens(response.Body)
}

func readBlockTokens(page io.Reader) (int, error) {
	label := regexp.MustCompile(`[{,]block_size="(\d{1,6})"`)
	lines := bufio.NewScanner(io.LimitReader(page, maxPageBytes))
	lines.Buffer(nil, maxPageLine)
	found := 0
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "vllm:cache_config_info{") {
			continue
		}
		match := label.FindStringSubmatch(lines.Text())
		if match == nil {
			continue
		}
		n, err := strconv.Atoi(match[1])
		if err != nil || n < 1 || found != 0 && n != found {
			return 0, fmt.Errorf("%w its cache's block: %q", ErrUntold, clip(lines.Bytes()))
		}
		found = n
	}
	if err := lines.Err(); err != nil {
		return 0, fail(Garbage, fmt.Errorf("the metrics: %w", err))
	}
	if found == 0 {
		return 0, fmt.Errorf("%w its cache's block", ErrUntold)
	}
	return found, nil
}

// Vocabulary finds a power of two up to which the server takes token ids, by
// completions of one token: no prompt of one token can be cached.
func (c *Client) Vocabulary(ctx context.Context) (int, error) {
	var refusal error
	for n := largestVocabulary; n >= smallestVocabulary; n /= 2 {
		_, err := c.Complete(ctx, c.Body([]uint32{uint32(n - 1)}, 1), 1, 1, func(int) {})
		if err == nil {
			return n, nil
		}
		if KindOf(err) != BadRequest {
			return 0, err
		}
		refusal = err
	}
	return 0, fmt.Errorf("%w which token ids it takes: %w", ErrUntold, refusal)
}

// Reset empties the server's prefix caches, the connector's too. vLLM offers that
// in its development mode.
func (c *Client) Reset(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	response, err := c.send(ctx, http.MethodPost, "/reset_prefix_cache?reset_external=true", nil)
	if err != nil {
		return err
	}
	return response.Body.Close()
}
