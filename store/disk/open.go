package disk

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// openDeadline is in write deadlines: opening makes several calls.
const openDeadline = 5

// opened is what opening the file found.
type opened struct {
	file    File
	super   superblock
	removed removals
	fresh   string // why the tier starts empty, "" if it does not
}

// open opens the file, or makes it.
func (t *Tier) open(ctx context.Context) error {
	l := t.control.take(ctx, t.opts.WriteDeadline)
	if l == nil {
		return errLate
	}
	t.mu.RLock()
	file := t.file
	t.mu.RUnlock()
	found := make(chan opened, 1)
	err := l.run(openDeadline*t.opts.WriteDeadline, func() error {
		o, err := t.openFiles(file, l.buf)
		found <- o
		return err
	})
	if kindOf(err) != KindTimeout {
		l.release()
	} else {
		// Should it come back one day, its file is closed.
		go func() {
			if o := <-found; file == nil && o.file != nil {
				_ = o.file.Close() // nobody has written to it
			}
		}()
		return err
	}
	o := <-found
	if err != nil {
		if file == nil && o.file != nil {
			_ = o.file.Close() // nothing that counts was written
		}
		return err
	}
	t.opened(&o)
	return nil
}

func (t *Tier) openFiles(file File, page []byte) (o opened, err error) {
	o.file = file
	if o.file == nil {
		if o.file, err = t.dir.OpenData(dataName); err != nil {
			return o, fmt.Errorf("open %s: %w", dataName, err)
		}
	}
	err = readAll(o.file, page[:PageBytes], superblockAt)
	empty := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if err != nil && !empty {
		return o, err
	}
	if empty {
		o.fresh = "there is none yet"
	} else if o.super, err = decodeSuperblock(page); err != nil {
		o.fresh = err.Error()
	} else if o.fresh = t.unsuitable(&o.super); o.fresh == "" {
		data, err := t.dir.ReadFile(removalsName, maxRemovalsBytes+1)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			o.fresh = "the file of removals is missing"
		case err != nil:
			return o, fmt.Errorf("read %s: %w", removalsName, err)
		default:
			if o.removed, err = decodeRemovals(data); err != nil {
				o.fresh = err.Error()
			} else if o.removed.identity != o.super.identity {
				o.fresh = "the file of removals belongs to another file"
			}
		}
	}
	if o.fresh == "" {
		// What an earlier setting let it have beyond.
		return o, o.file.Limit(regionsAt + int64(t.opts.regions(o.super.regionBytes)*o.super.regionBytes))
	}
	err = t.format(&o, page)
	return o, err
}

// unsuitable says why a file can't be taken up, "" if it can.
func (t *Tier) unsuitable(s *superblock) string {
	with := t.opts
	with.RegionBytes = s.regionBytes
	if err := with.validate(); err != nil {
		return fmt.Sprintf("it has regions of %d bytes, of which too few or too many fit disk_bytes", s.regionBytes)
	}
	return ""
}

// format makes the file an empty one. Regions of an earlier one do not count: they
// name another identity.
func (t *Tier) format(o *opened, page []byte) error {
	var identity [8]byte
	_, _ = rand.Read(identity[:]) // it never fails
	o.super = superblock{regionBytes: t.opts.RegionBytes, identity: le.Uint64(identity[:])}
	o.removed = newRemovals(o.super.identity)
	if err := o.file.Allocate(0, regionsAt); err != nil {
		return fmt.Errorf("allocate the head of %s: %w", dataName, err)
	}
	o.super.encode(page)
	if err := writeAll(o.file, page[:PageBytes], superblockAt); err != nil {
		return err
	}
	note := o.removed.note(true)
	if err := t.dir.WriteFile(removalsName, note.encode()); err != nil {
		return fmt.Errorf("write %s: %w", removalsName, err)
	}
	return nil
}

func (t *Tier) opened(o *opened) {
	t.mu.Lock()
	t.file, t.identity, t.unsynced = o.file, o.super.identity, true // by whoever had it before
	t.emptyLocked(o.super.regionBytes)
	if t.removed.identity != t.identity {
		t.removed, t.noted = o.removed, o.removed.count
		t.feed.reset = nil // by numbers of another list
	}
	t.floorSeen = t.removed.floor
	t.removed.readable()
	t.removeEarlyLocked()
	t.mu.Unlock()
	if o.fresh != "" {
		t.opts.Log.Info("the disk tier starts empty", "why", o.fresh, "region_bytes", o.super.regionBytes)
	}
}

// notOpened notes that the file can't be opened.
func (t *Tier) notOpened(err error) {
	kind := kindOf(err)
	t.mu.Lock()
	t.stats.Errors[kind]++
	first := t.breaker.failed(t.opts.Now(), true)
	wait := t.breaker.cooldown
	t.settledLocked()
	t.mu.Unlock()
	if first {
		t.opts.Log.Error("the disk tier can't be used; the store goes on without it", "error", err, "next_try_in", wait)
	}
}
