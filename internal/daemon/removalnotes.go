package daemon

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"

	"github.com/mooncake-sidecar/sidecar/store/mooncake/level"
)

// A note is a line of fixed length: the namespace's digest, whether all of it is
// meant, the group, the hash, and the CRC-32C of all that.
const (
	noteAllAt   = 32
	noteGroupAt = 34
	noteHashAt  = 36
	noteSumAt   = 68
	noteBytes   = 72
)

// removalNotes are level.Notes in a file. It need not outlive the machine: then the
// node's directory is gone, and with it whoever had asked for the removals.
type removalNotes struct{ path string }

var _ level.Notes = (*removalNotes)(nil)

var errNotes = errors.New("the notes of removals are damaged")

// Read implements level.Notes. What is behind a damaged line is not trusted.
func (r *removalNotes) Read() (notes []level.Note, err error) {
	text, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for ; len(text) >= noteBytes; text = text[noteBytes:] {
		if binary.LittleEndian.Uint32(text[noteSumAt:]) != sumOfNote(text) {
			damaged := fmt.Errorf("%w: line %d", errNotes, len(notes)+1)
			return notes, errors.Join(damaged, r.shorten(notes))
		}
		n := level.Note{All: text[noteAllAt] != 0, Group: binary.LittleEndian.Uint16(text[noteGroupAt:])}
		copy(n.Namespace[:], text)
		copy(n.Hash[:], text[noteHashAt:noteSumAt])
		notes = append(notes, n)
	}
	if len(text) > 0 { // somebody was killed while it wrote, and has promised nothing
		return notes, r.shorten(notes)
	}
	return notes, nil
}

// shorten leaves the first notes only: what is added is to stand behind them.
func (r *removalNotes) shorten(notes []level.Note) error {
	return os.Truncate(r.path, int64(len(notes)*noteBytes))
}

func sumOfNote(line []byte) uint32 {
	return crc32.Checksum(line[:noteSumAt], crc32.MakeTable(crc32.Castagnoli))
}

func linesOf(notes []level.Note) []byte {
	text := make([]byte, 0, len(notes)*noteBytes)
	for i := range notes {
		var line [noteBytes]byte
		copy(line[:], notes[i].Namespace[:])
		if notes[i].All {
			line[noteAllAt] = 1
		}
		binary.LittleEndian.PutUint16(line[noteGroupAt:], notes[i].Group)
		copy(line[noteHashAt:], notes[i].Hash[:])
		binary.LittleEndian.PutUint32(line[noteSumAt:], sumOfNote(line[:]))
		text = append(text, line[:]...)
	}
	return text
}

// Add implements level.Notes.
func (r *removalNotes) Add(notes []level.Note) error {
	f, err := os.OpenFile(r.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	before, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	if _, err = f.Write(linesOf(notes)); err != nil { // a part of a line would hide what comes behind it
		return errors.Join(err, f.Truncate(before.Size()), f.Close())
	}
	return f.Close()
}

// Clear implements level.Notes.
func (r *removalNotes) Clear(keep []level.Note) error {
	if len(keep) == 0 {
		if err := os.Remove(r.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	next := r.path + ".new"
	if err := os.WriteFile(next, linesOf(keep), 0o600); err != nil {
		return err
	}
	return os.Rename(next, r.path)
}
