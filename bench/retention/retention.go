// Package retention measures what the store retention of sliding-window groups
// brings in hits and costs in bytes, by replaying a trace of prompts against a
// store that never evicts.
package retention

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/bits"

	"github.com/mooncake-sidecar/sidecar/coordinator"
	"github.com/mooncake-sidecar/sidecar/internal/kv"
)

// traceBlockTokens is the tokens one hash id of a trace stands for.
const traceBlockTokens = 512

const maxLineBytes = 1 << 20

// Result is what a replay found.
type Result struct {
	Requests int
	// Tokens were asked for and HitTokens of them found.
	Tokens, HitTokens int64
	// Chunks and Bytes are what the store holds in the end, by group and in all.
	Chunks []int64
	Bytes  int64
}

// request is a line of a trace.
type request struct {
	InputLength int     `json:"input_length"`
	HashIDs     []int64 `json:"hash_ids"`
}

// parts are the chunks of one of the trace's blocks that are stored, a bit each. A
// block id has one place in one prefix, so that id and part stand for a chained hash.
type parts [traceBlockTokens / 64]uint64

func (p *parts) has(i int) bool { return p != nil && p[i/64]>>(i%64)&1 == 1 }

// Replay looks every request of the trace up and then stores its prompt as the
// engine's last save would. The hash block must divide 512 tokens; a request's
// last, partial block is taken for its own.
func Replay(trace io.Reader, cfg coordinator.Config) (Result, error) {
	co, err := coordinator.New(cfg)
	if err != nil {
		return Result{}, err
	}
	h := cfg.HashBlockTokens
	if traceBlockTokens%h != 0 {
		return Result{}, fmt.Errorf("retention: the hash block of %d tokens does not divide %d", h, traceBlockTokens)
	}
	each := traceBlockTokens / h
	stored := make([]map[int64]*parts, co.NumGroups()) // by block
	for g := range stored {
		stored[g] = map[int64]*parts{}
	}
	result := Result{Chunks: make([]int64, co.NumGroups())}
	lines := bufio.NewScanner(trace)
	lines.Buffer(nil, maxLineBytes)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return Result{}, fmt.Errorf("retention: request %d: %w", result.Requests, err)
		}
		if r.InputLength < 0 || r.InputLength > len(r.HashIDs)*traceBlockTokens {
			return Result{}, fmt.Errorf("retention: request %d: %d tokens in %d blocks", result.Requests, r.InputLength, len(r.HashIDs))
		}
		lookup, err := co.Lookup(r.InputLength, r.InputLength/h, func(group, hashIndex int) kv.Existence {
			if stored[group][r.HashIDs[hashIndex/each]].has(hashIndex % each) {
				return kv.Present
			}
			return kv.Absent
		})
		if err != nil {
			return Result{}, fmt.Errorf("retention: request %d: %w", result.Requests, err)
		}
		result.Requests++
		result.Tokens += int64(r.InputLength)
		result.HitTokens += int64(lookup.HitTokens)
		masks, err := co.StoreMask(r.InputLength/cfg.SchedulerBlockTokens*cfg.SchedulerBlockTokens, 0, r.InputLength)
		if err != nil {
			return Result{}, fmt.Errorf("retention: request %d: %w", result.Requests, err)
		}
		for g, m := range masks {
			for i := m.First; i < m.End(); i++ {
				if m.Has(i) {
					at := co.HashIndex(g, i)
					block := stored[g][r.HashIDs[at/each]]
					if block == nil {
						block = new(parts)
						stored[g][r.HashIDs[at/each]] = block
					}
					block[at%each/64] |= 1 << (at % each % 64)
				}
			}
		}
	}
	if err := lines.Err(); err != nil {
		return Result{}, fmt.Errorf("retention: %w", err)
	}
	for g := range stored {
		for _, block := range stored[g] {
			for _, word := range block {
				result.Chunks[g] += int64(bits.OnesCount64(word))
			}
		}
		result.Bytes += result.Chunks[g] * int64(cfg.Groups[g].ShardBytes) * int64(max(1, cfg.Groups[g].Shards))
	}
	return result, nil
}
