package topology

import (
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

const (
	// maxTextBytes bounds a file: sysfs attributes fit a page, save lists of CPUs.
	maxTextBytes = 64 << 10
	// maxEntries bounds a directory that is looked through.
	maxEntries = 1 << 14
)

// readText returns a file without its last line end. A file that is not there, or
// not to be read, is not an error: there is false then.
func readText(root fs.FS, name string) (text string, there bool, err error) {
	file, err := root.Open(name)
	if err != nil {
		return "", false, nil
	}
	defer func() { _ = file.Close() }() // it was only read
	data, err := io.ReadAll(io.LimitReader(file, maxTextBytes+1))
	if err != nil {
		return "", false, nil // sysfs: the device has no such number, or went
	}
	if len(data) > maxTextBytes {
		return "", false, fmt.Errorf("%w: /%s has more than %d bytes", ErrText, name, maxTextBytes)
	}
	return strings.TrimRight(string(data), "\n"), true, nil
}

// readSet reads a file with a list of numbers.
func readSet(root fs.FS, name string) (set Set, there bool, err error) {
	text, there, err := readText(root, name)
	if err != nil || !there {
		return nil, false, err
	}
	if set, err = ParseSet(text); err != nil {
		return nil, false, fmt.Errorf("/%s: %w", name, err)
	}
	return set, true, nil
}

// readInt reads a file with one number, Unknown when there is none.
func readInt(root fs.FS, name string) (int, error) {
	text, there, err := readText(root, name)
	if err != nil || !there {
		return Unknown, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 32)
	if err != nil || n < Unknown {
		return Unknown, fmt.Errorf("/%s: %w: %.40q; want a number", name, ErrText, text)
	}
	return int(n), nil
}

// readHex reads a file with one number like 0x030200; there is false without it.
func readHex(root fs.FS, name string) (n uint32, there bool, err error) {
	text, there, err := readText(root, name)
	if err != nil || !there {
		return 0, false, err
	}
	wide, err := strconv.ParseUint(strings.TrimPrefix(strings.TrimSpace(text), "0x"), 16, 32)
	if err != nil {
		return 0, false, fmt.Errorf("/%s: %w: %.40q; want a number like 0x030200", name, ErrText, text)
	}
	return uint32(wide), true, nil
}

// list returns the names in a directory in order, nil when it is not there.
func list(root fs.FS, dir string) ([]string, error) {
	entries, err := fs.ReadDir(root, dir)
	if err != nil {
		return nil, nil //nolint:nilerr // without it the machine has none
	}
	if len(entries) > maxEntries {
		return nil, fmt.Errorf("%w: /%s has more than %d entries", ErrText, dir, maxEntries)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// readLink returns where a link leads as a path below root, "" when name is no
// link or leads out of it.
func readLink(root fs.FS, name string) (string, error) {
	target, err := fs.ReadLink(root, name)
	if err != nil {
		return "", nil //nolint:nilerr // no link: sysfs has plain files among them, such as bonding_masters
	}
	if len(target) > 4096 {
		return "", fmt.Errorf("/%s: %w: a link of %d bytes", name, ErrText, len(target))
	}
	if path.IsAbs(target) {
		target = path.Clean(target)[1:]
	} else {
		target = path.Join(path.Dir(name), target)
	}
	if !fs.ValidPath(target) {
		return "", nil
	}
	return target, nil
}
