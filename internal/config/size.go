package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ErrValue: a setting has a value that can't be read, or that makes no sense.
var ErrValue = errors.New("bad value")

// Size is a number of bytes.
type Size uint64

// The units, the longest names first.
var sizeUnits = []struct {
	name  string
	bytes uint64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"T", 1 << 40},
	{"B", 1},
}

// ParseSize reads a number of bytes: 1048576, 64MiB, 1.5GiB. Units may be
// written in lower case.
func ParseSize(text string) (Size, error) {
	number, unit := strings.TrimSpace(text), uint64(1)
	for _, u := range sizeUnits {
		if len(number) > len(u.name) && strings.EqualFold(number[len(number)-len(u.name):], u.name) {
			number, unit = strings.TrimSpace(number[:len(number)-len(u.name)]), u.bytes
			break
		}
	}
	if n, err := strconv.ParseUint(number, 10, 64); err == nil {
		if n > math.MaxInt64/unit {
			return 0, fmt.Errorf("%w: size %q is too large", ErrValue, text)
		}
		return Size(n * unit), nil
	}
	f, err := strconv.ParseFloat(number, 64)
	if err != nil || !(f >= 0) || unit == 1 || strings.ContainsAny(number, "eExXpP_") {
		return 0, fmt.Errorf("%w: size %q; write a number of bytes, or 512MiB, 4GiB", ErrValue, text)
	}
	if f *= float64(unit); f < math.MaxInt64 {
		return Size(f), nil
	}
	return 0, fmt.Errorf("%w: size %q is too large", ErrValue, text)
}

// String writes the size with the largest binary unit that divides it.
func (s Size) String() string {
	for _, u := range []int{3, 2, 1, 0} {
		if unit := sizeUnits[u]; s != 0 && uint64(s)%unit.bytes == 0 {
			return fmt.Sprintf("%d%s", uint64(s)/unit.bytes, unit.name)
		}
	}
	return strconv.FormatUint(uint64(s), 10)
}
