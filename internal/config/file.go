package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/xrash/smetrics"
	"gopkg.in/yaml.v3"
)

// maxFileBytes bounds a configuration file.
const maxFileBytes = 1 << 20

// fileValue is a setting as the file writes it.
type fileValue struct {
	section, key, text string
	line               int
}

// readFile reads the file, if there is to be one.
func (src *Source) readFile() ([]fileValue, error) {
	if src.File == "" {
		return nil, nil
	}
	handle, err := os.Open(src.File)
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(handle, maxFileBytes+1))
	if err := errors.Join(err, handle.Close()); err != nil {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	values, err := parseFile(data)
	return values, inFile(src.File, err)
}

// inFile names the file in every one of joined faults.
func inFile(name string, err error) error {
	if err == nil {
		return nil
	}
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		var named []error
		for _, one := range all.Unwrap() {
			named = append(named, inFile(name, one))
		}
		return errors.Join(named...)
	}
	return fmt.Errorf("configuration file %s: %w", name, err)
}

// parseFile reads YAML: a mapping of keys to values, some within a section. The
// error lists every key that is not known and every value that is no scalar;
// what is well is returned beside it.
func parseFile(data []byte) ([]fileValue, error) {
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("%w: more than %s", ErrValue, Size(maxFileBytes))
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) { // an empty file
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrValue, err)
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: more than one document", ErrValue)
	}
	p := fileParser{known: knownKeys()}
	p.mapping(document.Content[0], SectionCommon)
	return p.values, errors.Join(p.faults...)
}

// knownKeys lists the keys of each section.
func knownKeys() map[string][]string {
	known := map[string][]string{SectionCommon: {SectionLookupd, SectionWorker, SectionConductor}}
	for _, f := range slices.Concat((&LookupdConfig{}).Fields(), (&WorkerConfig{}).Fields(), (&ConductorConfig{}).Fields()) {
		if !f.NotInFile && !slices.Contains(known[f.Section], f.Key) {
			known[f.Section] = append(known[f.Section], f.Key)
		}
	}
	return known
}

type fileParser struct {
	known  map[string][]string
	values []fileValue
	faults []error
}

func (p *fileParser) fault(line int, format string, args ...any) {
	p.faults = append(p.faults, fmt.Errorf("line %d: %w: %s", line, ErrValue, fmt.Sprintf(format, args...)))
}

// mapping takes a section's keys.
func (p *fileParser) mapping(node *yaml.Node, section string) {
	if node.Kind == yaml.ScalarNode && node.Tag == "!!null" {
		return // nothing below the section's name, or in the file
	}
	if node.Kind != yaml.MappingNode {
		p.fault(node.Line, "want keys and values%s", inSection(section))
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		name := key.Value
		switch {
		case key.Kind != yaml.ScalarNode || !slices.Contains(p.known[section], name):
			p.unknown(key, section)
		case seen[name]:
			p.fault(key.Line, "%s is there twice", name)
		case section == SectionCommon && p.known[name] != nil:
			p.mapping(value, name)
		case value.Kind != yaml.ScalarNode:
			p.fault(value.Line, "%s: want a single value", name)
		case value.Tag != "!!null": // null leaves the default
			p.values = append(p.values, fileValue{section: section, key: name, text: value.Value, line: value.Line})
		}
		seen[name] = true
	}
}

// unknown refuses a key and says which was meant.
func (p *fileParser) unknown(key *yaml.Node, section string) {
	name := key.Value
	for _, other := range []string{SectionCommon, SectionLookupd, SectionWorker, SectionConductor} {
		if other != section && slices.Contains(p.known[other], name) {
			p.fault(key.Line, "unknown key %q%s; it belongs %s", name, inSection(section), belongs(other))
			return
		}
	}
	hint := "known are " + strings.Join(p.known[section], ", ")
	if near := nearest(name, p.known[section]); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	p.fault(key.Line, "unknown key %.64q%s; %s", name, inSection(section), hint)
}

func inSection(section string) string {
	if section == SectionCommon {
		return ""
	}
	return " in section " + section
}

func belongs(section string) string {
	if section == SectionCommon {
		return "to the top of the file, outside any section"
	}
	return "into section " + section
}

// nearest returns the known name that is a few letters away, or "".
func nearest(name string, known []string) string {
	best, bestCost := "", 4
	if len(name) > 64 {
		return ""
	}
	for _, k := range known {
		if cost := smetrics.WagnerFischer(name, k, 1, 1, 1); cost < min(bestCost, len(k)) {
			best, bestCost = k, cost
		}
	}
	return best
}
