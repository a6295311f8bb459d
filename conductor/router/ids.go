package router

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// tokenBytes is what a token id takes, little-endian.
const tokenBytes = 4

var errIDs = errors.New("no list of token ids")

// parseIDs reads an array of token ids.
func parseIDs(raw []byte) ([]byte, error) {
	s := scanner{raw: raw}
	if !s.take('[') {
		return nil, errIDs
	}
	ids := make([]byte, 0, len(raw)) // an id takes four characters or so
	for first := true; !s.take(']'); first = false {
		// Nearly always the comma is here, and the number behind it.
		if !first && s.at < len(raw) && raw[s.at] == ',' {
			s.at++
		} else if !first && !s.take(',') {
			return nil, fmt.Errorf("%w at byte %d", errIDs, s.at)
		}
		s.space()
		at, id := s.at, uint64(0)
		for ; at < len(raw) && raw[at]-'0' <= 9 && at < s.at+11; at++ {
			id = 10*id + uint64(raw[at]-'0')
		}
		digits := at - s.at
		s.at = at
		if digits == 0 || id > math.MaxUint32 {
			return nil, fmt.Errorf("%w at byte %d", errIDs, s.at)
		}
		ids = binary.LittleEndian.AppendUint32(ids, uint32(id))
	}
	if s.space(); s.at != len(raw) {
		return nil, fmt.Errorf("%w: something follows it", errIDs)
	}
	return ids, nil
}

// formatIDs is parseIDs' reverse.
func formatIDs(ids []byte) []byte {
	out := append(make([]byte, 0, len(ids)*2), '[')
	for i := 0; i+tokenBytes <= len(ids); i += tokenBytes {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendUint(out, uint64(binary.LittleEndian.Uint32(ids[i:])), 10)
	}
	return append(out, ']')
}
