package topology

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ErrText: a text of sysfs or procfs that can't be read.
var ErrText = errors.New("topology: malformed text")

// maxSetNumber bounds the numbers of CPUs and nodes, far above what kernels are
// built for.
const maxSetNumber = 1<<16 - 1

// Set is a set of CPU or node numbers, in ascending order without repetition.
type Set []int

// ParseSet reads the kernel's list format: "0-3,8", empty for the empty set.
func ParseSet(text string) (Set, error) {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	var set Set
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, err := parseNumber(first)
		if err != nil {
			return nil, fmt.Errorf("%w: %.40q in a list of numbers", ErrText, part)
		}
		to := from
		if isRange {
			if to, err = parseNumber(last); err != nil || to < from {
				return nil, fmt.Errorf("%w: %.40q in a list of numbers", ErrText, part)
			}
		}
		// The kernel writes ascending lists; one that goes back could grow without end.
		if len(set) > 0 && from <= set[len(set)-1] {
			return nil, fmt.Errorf("%w: %.40q does not ascend in a list of numbers", ErrText, part)
		}
		for n := from; n <= to; n++ {
			set = append(set, n)
		}
	}
	return set, nil
}

func parseNumber(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, err
	}
	if n > maxSetNumber {
		return 0, ErrText
	}
	return int(n), nil
}

// String writes the set in the kernel's list format.
func (s Set) String() string {
	var b strings.Builder
	for i := 0; i < len(s); {
		last := i
		for last+1 < len(s) && s[last+1] == s[last]+1 {
			last++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(s[i]))
		if last > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(s[last]))
		}
		i = last + 1
	}
	return b.String()
}

// MarshalText writes the set as String does, for JSON.
func (s Set) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is the reverse of MarshalText.
func (s *Set) UnmarshalText(text []byte) (err error) {
	*s, err = ParseSet(string(text))
	return err
}

// Has tells whether n is in the set.
func (s Set) Has(n int) bool {
	_, found := slices.BinarySearch(s, n)
	return found
}

// Intersect returns what is in both.
func (s Set) Intersect(other Set) Set {
	var both Set
	for _, n := range s {
		if other.Has(n) {
			both = append(both, n)
		}
	}
	return both
}

// Within tells whether all of s is in other.
func (s Set) Within(other Set) bool { return len(s.Intersect(other)) == len(s) }
