package indexer

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/mooncake-sidecar/sidecar/conductor/contract"
	"github.com/mooncake-sidecar/sidecar/conductor/feed"
	"github.com/mooncake-sidecar/sidecar/conductor/prefixindex"
	"github.com/mooncake-sidecar/sidecar/conductor/registry"
)

// A snapshot is this, the seed in eight bytes, and a dump of the index in which each
// source's tag is its service.
const snapshotMagic = "mkv-idx1"

// SnapshotFile is a snapshot's name in its directory.
const SnapshotFile = "index.snapshot"

var (
	// ErrSnapshot: the bytes are no snapshot, or a damaged one.
	ErrSnapshot = errors.New("not a snapshot of an index")
	// ErrSeed: the snapshot is of an index with another seed than this one must have.
	ErrSeed = errors.New("a snapshot of an index with another seed")
)

// saved is what a snapshot says of a service.
type saved struct {
	Service contract.Service
	Ways    contract.Ways
	// Mark is where its stream had got to; without one what it told is worth nothing.
	Mark *feed.Mark `json:",omitempty"`
}

// Snapshot writes all that is known, with where each stream had got to. Events wait until it
// is in a file, not until somebody has read it.
func (x *Indexer) Snapshot(ctx context.Context, to io.Writer) (err error) {
	// Where there is room for the snapshot of the end, there is for this one.
	file, err := os.CreateTemp(x.opts.Keep.Dir, SnapshotFile+".*")
	if err != nil {
		return fmt.Errorf("indexer: snapshot: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if err := os.Remove(file.Name()); err != nil {
		return fmt.Errorf("indexer: snapshot: %w", err)
	}
	if err := x.write(file); err != nil {
		return err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("indexer: snapshot: %w", err)
	}
	if _, err := io.Copy(to, &readerUntil{ctx, file}); err != nil {
		return fmt.Errorf("indexer: snapshot: %w", err)
	}
	return nil
}

// readerUntil ends with its context.
type readerUntil struct {
	ctx context.Context //nolint:containedctx // it lives for one call
	io.Reader
}

// Read implements io.Reader.
func (r *readerUntil) Read(into []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(into)
}

// Save writes a snapshot into a directory, in place of the one that is there.
func (x *Indexer) Save(dir string) (err error) {
	file, err := os.CreateTemp(dir, SnapshotFile+".*")
	if err != nil {
		return fmt.Errorf("indexer: snapshot: %w", err)
	}
	name := file.Name()
	err = x.write(file)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(name, filepath.Join(dir, SnapshotFile))
	}
	if err != nil {
		return fmt.Errorf("indexer: snapshot: %w", errors.Join(err, os.Remove(name)))
	}
	return nil
}

// Load restores the snapshot of a directory, false when there is none.
func (x *Indexer) Load(ctx context.Context, dir string, expected *Expected) (found bool, err error) {
	file, err := os.Open(filepath.Join(dir, SnapshotFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("indexer: %w", err)
	}
	defer file.Close()
	return true, x.Restore(ctx, file, expected)
}

// write writes a snapshot while events wait.
func (x *Indexer) write(to io.Writer) error {
	header := binary.LittleEndian.AppendUint64([]byte(snapshotMagic), x.seed)
	if _, err := to.Write(header); err != nil {
		return fmt.Errorf("indexer: snapshot: %w", err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.gate.Lock()
	defer x.gate.Unlock()
	var sources []prefixindex.Saved
	for _, m := range x.list() {
		one := saved{Service: m.service, Ways: contract.Ways(m.ways.Load())} //nolint:gosec // they are Ways
		if mark, ok := m.feed.Mark(); ok {
			one.Mark = &mark
		}
		tag, err := json.Marshal(&one)
		if err != nil {
			return fmt.Errorf("indexer: snapshot: %w", err)
		}
		sources = append(sources, prefixindex.Saved{Source: m.source, Tag: tag})
	}
	return x.index.Dump(to, sources)
}

// Restore begins with a snapshot: its services are followed from where they were. Those that
// somebody registered are taken; those that came from a configuration, or were found at an
// engine of one, only where this one has them, or that engine, and none that has the key of
// another one of this configuration. After an error the indexer knows nothing.
//
// REQUIRES: nothing was registered, and nobody asks yet.
func (x *Indexer) Restore(ctx context.Context, from io.Reader, expected *Expected) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := bufio.NewReader(from)
	header := make([]byte, len(snapshotMagic)+8)
	if _, err := io.ReadFull(r, header); err != nil {
		return fmt.Errorf("indexer: %w: %w", ErrSnapshot, err)
	}
	if string(header[:len(snapshotMagic)]) != snapshotMagic {
		return fmt.Errorf("indexer: %w", ErrSnapshot)
	}
	seed := binary.LittleEndian.Uint64(header[len(snapshotMagic):])
	if x.opts.HasSeed && seed != x.opts.Seed {
		return fmt.Errorf("indexer: %w", ErrSeed)
	}
	index := prefixindex.New(prefixindex.Options{MaxBytes: x.opts.MaxBytes, Seed: seed})
	keep := keeper{x: x, static: configured(expected.Static), engines: expected.Engines}
	sources, err := index.Restore(r, keep.take)
	if err != nil {
		return fmt.Errorf("indexer: %w: %w", ErrSnapshot, err)
	}
	x.seed, x.index = seed, index
	for i := range keep.known {
		x.resumeLocked(ctx, &keep.known[i], &sources)
	}
	x.fileLocked()
	return nil
}

// configured are the services of the configuration by their keys, as they are kept.
func configured(static []contract.Service) map[contract.ServiceKey]contract.Service {
	of := map[contract.ServiceKey]contract.Service{}
	for _, s := range static {
		if registry.Prepare(&s) == nil { // else registering it will say what is wrong
			of[s.Key()] = s
		}
	}
	return of
}

// keeper says which of a snapshot's services are taken.
type keeper struct {
	x       *Indexer
	static  map[contract.ServiceKey]contract.Service
	engines []string
	known   []saved
}

// take is asked of each source; it is true when what the source told is of use.
func (k *keeper) take(origin prefixindex.Origin, tag []byte) bool {
	var one saved
	if json.Unmarshal(tag, &one) != nil || registry.Prepare(&one.Service) != nil {
		return false
	}
	one.Ways &^= contract.Configured
	if now, ok := k.static[one.Service.Key()]; ok {
		if now != one.Service {
			return false
		}
		one.Ways |= contract.Configured
	}
	if !slices.Contains(k.engines, one.Service.Instance) {
		one.Ways &^= contract.Found
	}
	if one.Ways == 0 { // who had it has it no more
		return false
	}
	origin.ReusesReported = false // that is found out
	if origin != k.x.originLocked(&one.Service) {
		return false
	}
	k.known = append(k.known, one)
	return one.Mark != nil
}

// resumeLocked follows a service of a snapshot, with the next of the sources if it has one.
func (x *Indexer) resumeLocked(ctx context.Context, one *saved, sources *[]prefixindex.Saved) {
	m := &member{service: one.Service, restored: true}
	m.came(one.Ways)
	if one.Mark != nil {
		m.source = (*sources)[0].Source
		*sources = (*sources)[1:]
	}
	if _, registered, err := x.registry.Add(one.Service); err != nil || registered.Existed { // more than there may be
		if m.source != nil {
			m.source.Close()
		}
		return
	}
	x.startLocked(ctx, m, one.Mark)
}
