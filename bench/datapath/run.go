package datapath

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Build is a directory of daemons to measure.
type Build struct {
	Name, Dir string
	// Unverified: loads do not compare checksums.
	Unverified bool
}

// geometry is a load's size and how its blocks lie in the engine's memory.
type geometry struct {
	Tokens        int `json:"tokens"`
	BytesPerToken int `json:"bytes_per_token"`
	BlockTokens   int `json:"block_tokens"`
	// Layers are the pieces of a block.
	Layers int `json:"layers"`
}

func (g geometry) blocks() int     { return g.Tokens / g.BlockTokens }
func (g geometry) shardBytes() int { return g.BlockTokens * g.BytesPerToken }
func (g geometry) bytes() int      { return g.blocks() * g.shardBytes() }
func (g geometry) String() string {
	return fmt.Sprintf("%dMB/b%d/l%d", (g.bytes()+1e6/2)/1e6, g.BlockTokens, g.Layers)
}

var geometries = []geometry{
	{2048, 2 << 10, 16, 4},
	{8192, 2 << 10, 16, 4},
	{8192, 2 << 10, 128, 4},
	{8192, 4 << 10, 128, 32},
	{2048, 64 << 10, 16, 32},
	{2048, 64 << 10, 128, 32},
	{8192, 64 << 10, 16, 32},
	{8192, 64 << 10, 128, 32},
}

// Options of a run.
type Options struct {
	// Builds are compared; ratios are to the first.
	Builds []Build
	// Rounds are fresh starts of each build for each size, Warm the warm loads in
	// one.
	Rounds, Warm int
	// Settle is the time between the daemons' start and the first job.
	Settle time.Duration
	// Busy threads compute in the engine while stores go on; 0 measures loads and
	// stores instead.
	Busy int
	// Queued bytes of stores wait or run beside loads; 0 measures loads and stores by
	// themselves.
	Queued int
	// Unverified measures each build without verification too.
	Unverified bool
	// Peers are stores to measure beside: intree, lmcache.
	Peers []string
	// Root is the repository, Python its interpreter; peers need them.
	Root, Python string
	// Only sizes with these parts, between slashes, in their name are measured; empty: all.
	Only string
	// Out takes the tables.
	Out io.Writer
}

func (o *Options) check() error {
	if o.Rounds < 1 || o.Warm < 1 || o.Busy < 0 || o.Queued < 0 || o.Settle < 0 {
		return fmt.Errorf("datapath: %d rounds, %d warm loads, %d busy threads, %v to settle: want at least one round and one load", o.Rounds, o.Warm, o.Busy, o.Settle)
	}
	for _, b := range o.Builds {
		for _, program := range []string{"mooncake-lookupd", "mooncake-worker"} {
			if _, err := os.Stat(filepath.Join(b.Dir, program)); err != nil {
				return fmt.Errorf("datapath: build %s: %w (make build writes the daemons to bin)", b.Name, err)
			}
		}
	}
	if !slices.ContainsFunc(geometries, func(g geometry) bool { return wanted(o.Only, g) }) {
		return fmt.Errorf("datapath: no size is %q: there are %v", o.Only, geometries)
	}
	return nil
}

// wanted reports whether a size has all of only's parts in its name.
func wanted(only string, g geometry) bool {
	parts := strings.Split(g.String(), "/")
	return only == "" || !slices.ContainsFunc(strings.Split(only, "/"), func(part string) bool { return !slices.Contains(parts, part) })
}

// Run measures and prints a table a size. The samples are for a file.
func Run(ctx context.Context, o *Options) ([]Sample, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.Unverified {
		builds := o.Builds
		o.Builds = nil
		for _, b := range builds {
			o.Builds = append(o.Builds, b, Build{Name: b.Name + "/unverified", Dir: b.Dir, Unverified: true})
		}
	}
	var all []Sample
	for _, g := range geometries {
		if !wanted(o.Only, g) {
			continue
		}
		samples, err := measure(ctx, o, g)
		if err != nil {
			return nil, fmt.Errorf("datapath: %s: %w", g, err)
		}
		printTable(o, g, samples)
		printYardsticks(o, samples)
		if o.Queued > 0 {
			printQueued(o, samples)
		}
		all = append(all, samples...)
	}
	return all, nil
}

// measure measures one size.
func measure(ctx context.Context, o *Options, g geometry) (samples []Sample, err error) {
	peers, err := startPeers(ctx, o, g)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, peers.stop()) }()
	for round := range o.Rounds {
		for turn := range o.Builds {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			// The order alternates: who goes first finds another machine.
			if round%2 == 1 {
				turn = len(o.Builds) - 1 - turn
			}
			got, err := runRound(ctx, o, o.Builds[turn], g, round)
			if err != nil {
				return nil, fmt.Errorf("build %s: %w", o.Builds[turn].Name, err)
			}
			samples = append(samples, got...)
		}
		got, err := peers.round(ctx, round)
		if err != nil {
			return nil, err
		}
		samples = append(samples, got...)
	}
	return samples, nil
}
