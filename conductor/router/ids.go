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
		if !first && !s.take(',') {
			return nil, fmt.Errorf("%w at byte %d", errIDs, s.at)
		}
		s.space()
		id, digits := uint64(0), 0
		for ; s.at < len(raw) && raw[s.at] >= '0' && raw[s.at] <= '9' && digits < 11; s.at++ {
			id = 10*id + uint64(raw[s.at]-'0')
			digits++
		}
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
