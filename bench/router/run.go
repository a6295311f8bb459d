package router

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/fleet"
	"github.com/mooncake-sidecar/sidecar/conductor/router"
)

// Options of a run.
type Options struct {
	// Rate is the requests a second that go through the router; as many go straight.
	Rate float64
	// Each kind of prompt is asked for so long.
	Each time.Duration
	// Engines there are, and tokens in a prompt.
	Engines, PromptTokens int
	Seed                  uint64
	// Progress is told what is measured.
	Progress func(string)
}

// The kinds of prompts.
const (
	// IDs have their token ids: nothing is tokenised.
	IDs = "token ids"
	// Remembered are texts whose token ids the router has.
	Remembered = "text, ids remembered"
	// Asked are texts that come for the first time; the engine knows their ids at once.
	Asked = "text, ids asked for"
)

var errAnswer = errors.New("bench/router: not what was expected")

// Run measures.
func Run(ctx context.Context, o *Options) (*Result, error) {
	b, err := begin(ctx, o)
	if err != nil {
		return nil, err
	}
	defer b.end()
	result := &Result{Rate: o.Rate, Engines: o.Engines, PromptTokens: o.PromptTokens}
	for _, kind := range []string{IDs, Remembered, Asked} {
		o.Progress(fmt.Sprintf("%s: %v at %g requests a second each way", kind, o.Each, o.Rate))
		// Connections are made, and times settle.
		if _, err := b.measure(ctx, kind, min(o.Each/5, 2*time.Second)); err != nil {
			return nil, err
		}
		pairs, err := b.measure(ctx, kind, o.Each)
		if err != nil {
			return nil, err
		}
		result.add(kind, pairs)
	}
	return result, nil
}

// bench is a router in front of engines.
type bench struct {
	o       *Options
	random  *rand.Rand
	prompts [][]byte // whose beginning engines hold
	servers []*server
	front   *server
	cancel  context.CancelFunc
	running sync.WaitGroup
	client  *http.Client
	idle    []*http.Transport
}

// prompts are taken again and again, each with another end.
const promptKinds = 64

func begin(ctx context.Context, o *Options) (b *bench, err error) {
	b = &bench{o: o, random: rand.New(rand.NewPCG(o.Seed, 1))} //nolint:gosec // it draws prompts
	transport := &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}
	b.client, b.idle = &http.Client{Transport: transport}, append(b.idle, transport)
	ctx, b.cancel = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			b.end()
		}
	}()
	for range promptKinds {
		b.prompts = append(b.prompts, tokensOf(b.text()))
	}
	var engines []fleet.Engine
	var names []string
	for i := range o.Engines {
		s, err := serve(engine{})
		if err != nil {
			return b, err
		}
		b.servers = append(b.servers, s)
		names = append(names, fmt.Sprint("engine-", i))
		engines = append(engines, fleet.Engine{Name: names[i], URL: s.url})
	}
	log := slog.New(slog.DiscardHandler)
	polls, requests := router.NewTransport(), router.NewTransport()
	b.idle = append(b.idle, polls, requests)
	f, err := fleet.New(engines, fleet.Options{}, polls, log)
	if err != nil {
		return b, err
	}
	r, err := router.New(router.Config{TokenizeTimeout: time.Minute}, newIndex(names, b.prompts), f, nil, requests, log)
	if err != nil {
		return b, err
	}
	b.running.Go(func() { _ = f.Run(ctx) }) // it ends with ctx
	b.running.Go(func() { _ = r.Run(ctx) })
	if b.front, err = serve(r); err != nil {
		return b, err
	}
	for f.Usable() < o.Engines {
		if ctx.Err() != nil {
			return b, ctx.Err()
		}
		time.Sleep(10 * time.Millisecond)
	}
	return b, nil
}

func (b *bench) end() {
	b.client.CloseIdleConnections()
	if b.front != nil {
		b.front.close()
	}
	b.cancel()
	b.running.Wait()
	for _, t := range b.idle {
		t.CloseIdleConnections()
	}
	for _, s := range b.servers {
		s.close()
	}
}

func (b *bench) text() string {
	var text strings.Builder
	for text.Len() < b.o.PromptTokens*charactersOfToken {
		fmt.Fprintf(&text, "%x ", b.random.Uint64())
	}
	return text.String()[:b.o.PromptTokens*charactersOfToken]
}

// body of a request of a kind.
func (b *bench) body(kind string, texts []string) string {
	at := b.random.IntN(promptKinds)
	prompt := fmt.Sprintf("%q", texts[at])
	switch kind {
	case IDs:
		tokens := append([]byte(nil), b.prompts[at]...)
		tokens[len(tokens)-1] = 0
		tokens[len(tokens)-2] = byte(b.random.Uint32()) // another end
		prompt = string(listOf(tokens))
	case Asked:
		prompt = fmt.Sprintf("%q", texts[at][:len(texts[at])-16]+fmt.Sprintf("%016x", b.random.Uint64()))
	}
	return fmt.Sprintf(`{"model":%q,"prompt":%s,"max_tokens":3,"stream":true}`, model, prompt)
}

// pair is the times to the first byte of two equal requests, one after the other, in
// seconds.
type pair struct{ straight, through float64 }

// measure sends pairs of requests for some time: each half an interval later than the
// other, which of them first by chance.
func (b *bench) measure(ctx context.Context, kind string, each time.Duration) ([]pair, error) {
	texts := make([]string, promptKinds)
	for i := range texts {
		texts[i] = b.text()
	}
	half := time.Duration(float64(time.Second) / b.o.Rate / 2)
	pairs := make([]pair, int(each/(2*half)))
	faults := make(chan error, 2*len(pairs))
	var all sync.WaitGroup
	next := time.Now()
	for i := range pairs {
		content := b.body(kind, texts)
		urls := [2]string{b.servers[b.random.IntN(len(b.servers))].url, b.front.url}
		times := [2]*float64{&pairs[i].straight, &pairs[i].through}
		first := b.random.IntN(2)
		for _, way := range [2]int{first, 1 - first} {
			if next = next.Add(half); ctx.Err() != nil {
				break
			}
			time.Sleep(time.Until(next))
			all.Go(func() {
				took, err := b.ask(ctx, urls[way], content)
				if err != nil {
					faults <- err
				}
				*times[way] = took.Seconds()
			})
		}
	}
	all.Wait()
	close(faults)
	if err := <-faults; err != nil {
		return nil, err
	}
	return pairs, ctx.Err()
}

// ask sends a request and returns the time until the first byte of its answer's body.
func (b *bench) ask(ctx context.Context, url, content string) (time.Duration, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(content))
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errAnswer, err)
	}
	request.Header.Set("Content-Type", "application/json")
	began := time.Now()
	response, err := b.client.Do(request)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errAnswer, err)
	}
	defer response.Body.Close()
	var one [1]byte
	if _, err := io.ReadFull(response.Body, one[:]); err != nil {
		return 0, fmt.Errorf("%w: %w", errAnswer, err)
	}
	took := time.Since(began)
	rest, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK || !strings.Contains(string(rest), "[DONE]") {
		return 0, fmt.Errorf("%w: %s: %.200s (%w)", errAnswer, response.Status, rest, errors.Join(err, errAnswer))
	}
	return took, nil
}
