package suite

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxResult of a part's output that is read.
const maxResult = 64 << 20

// readJSON reads one object of a file.
func readJSON(path string, into any) error {
	text, err := readFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	return nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading a result: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxResult+1))
	if err == nil && len(text) > maxResult {
		err = fmt.Errorf("more than %d bytes", maxResult)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", path, err)
	}
	return text, nil
}

// readLines reads one object a line.
func readLines[T any](path string) ([]T, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading a result: %w", err)
	}
	defer f.Close()
	var all []T
	for d := json.NewDecoder(io.LimitReader(f, maxResult)); ; {
		var one T
		switch err := d.Decode(&one); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
		all = append(all, one)
	}
}
