package indexer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
)

// Keeping is where an indexer has its snapshots.
type Keeping struct {
	// Dir is a directory for one, "" for none, and Interval how often it is written; it is
	// written at the end in any case.
	Dir      string
	Interval time.Duration
	// Peers are the addresses (http://HOST:PORT) of conductors one of which is asked for
	// its snapshot where there is none in Dir, and Client how.
	Peers  []string
	Client *http.Client
	// Expected is what the configuration has.
	Expected Expected
}

// Expected is what a configuration has, see Restore.
type Expected struct {
	// Static are its services, and Engines the instances whose services are found.
	Static  []contract.Service
	Engines []string
}

// Open makes an indexer that begins with a snapshot, if there is one: the directory's, else
// the first peer's that has one. What can't be used is logged and left alone: all that it
// has can be heard again.
func Open(ctx context.Context, opts *Options) *Indexer {
	x := New(opts)
	log, keep := x.opts.Log, &opts.Keep
	began := time.Now()
	if keep.Dir != "" {
		x.tidy(keep.Dir)
		found, err := x.Load(ctx, keep.Dir, &keep.Expected)
		switch {
		case err != nil:
			log.Warn("the index can't begin with its snapshot", "dir", keep.Dir, "error", err)
		case found:
			log.Info("the index begins with its snapshot", "dir", keep.Dir, "services", len(x.list()), "blocks", x.index.Blocks(), "took", time.Since(began))
			return x
		}
	}
	for _, peer := range keep.Peers {
		if err := x.fetch(ctx, peer); err != nil {
			log.Warn("the index can't begin with a peer's snapshot", "peer", peer, "error", err)
			continue
		}
		log.Info("the index begins with a peer's snapshot", "peer", peer, "services", len(x.list()), "blocks", x.index.Blocks(), "took", time.Since(began))
		return x
	}
	return x
}

// tidy removes what one that was killed has left of the snapshot that it wrote.
func (x *Indexer) tidy(dir string) {
	left, err := filepath.Glob(filepath.Join(dir, SnapshotFile+".*"))
	for _, name := range left {
		err = errors.Join(err, os.Remove(name))
	}
	if err != nil {
		x.opts.Log.Warn("what is left of the index's snapshots can't be removed", "dir", dir, "error", err)
	}
}

// fetch restores a peer's snapshot. What it has is bounded by MaxBytes, not its length.
func (x *Indexer) fetch(ctx context.Context, peer string) error {
	at, err := url.Parse(peer)
	if err != nil {
		return fmt.Errorf("indexer: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at.JoinPath("snapshot").String(), http.NoBody)
	if err != nil {
		return fmt.Errorf("indexer: %w", err)
	}
	client := x.opts.Keep.Client
	if client == nil {
		client = http.DefaultClient
	}
	answer, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("indexer: ask a peer: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("indexer: %s answers %s", peer, answer.Status)
	}
	return x.Restore(ctx, answer.Body, &x.opts.Keep.Expected)
}

// save writes the directory's snapshot, if there is to be one.
func (x *Indexer) save() {
	keep := &x.opts.Keep
	if keep.Dir == "" {
		return
	}
	began := time.Now()
	err := x.Save(keep.Dir)
	x.kept.note(err)
	if err != nil {
		x.opts.Log.Error("the index's snapshot can't be written", "dir", keep.Dir, "error", err)
		return
	}
	x.opts.Log.Debug("the index's snapshot is written", "dir", keep.Dir, "blocks", x.index.Blocks(), "took", time.Since(began))
}
