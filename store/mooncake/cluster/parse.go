package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// maxFileBytes bounds the file.
const maxFileBytes = 1 << 20

// others are fields that Mooncake's own programs read from such a file, and that
// the in-tree connector leaves alone.
var others = []string{"local_hostname", "enable_ssd_offload", "ssd_offload_path", "enable_client_http_server", "client_http_port", "device", "replica_num"}

// fields reads the fields of a file, remembering what was wrong.
type fields struct {
	values map[string]json.RawMessage
	known  []string
	faults []error
	notes  []string
}

func (f *fields) fault(field, format string, args ...any) {
	f.faults = append(f.faults, fmt.Errorf("%w: %s: %s", ErrConfig, field, fmt.Sprintf(format, args...)))
}

// take returns a field's JSON.
func (f *fields) take(field string) (json.RawMessage, bool) {
	f.known = append(f.known, field)
	raw, given := f.values[field]
	return raw, given
}

func (f *fields) text(field, unset string) string {
	raw, given := f.take(field)
	if !given {
		return unset
	}
	var text *string
	if err := json.Unmarshal(raw, &text); err != nil || text == nil {
		f.fault(field, "%.64s is no text; write it in quotes", raw)
		return unset
	}
	return *text
}

// tenant is text of which nothing means the default.
func (f *fields) tenant(field string) string {
	if raw, given := f.values[field]; given && string(raw) == "null" {
		f.known = append(f.known, field)
		return DefaultTenant
	}
	if text := strings.TrimSpace(f.text(field, DefaultTenant)); text != "" {
		return text
	}
	return DefaultTenant
}

func (f *fields) size(field string, unset uint64) uint64 {
	raw, given := f.take(field)
	if !given {
		return unset
	}
	size, err := parseSize(raw)
	if err != nil {
		f.fault(field, "%s", err)
		return unset
	}
	return size
}

// truth follows Python: what is empty or zero is false.
func (f *fields) truth(field string) bool {
	raw, given := f.take(field)
	if !given {
		return false
	}
	var value any
	if err := json.Unmarshal(raw, &value); err != nil {
		f.fault(field, "%.64s; want true or false", raw)
		return false
	}
	switch v := value.(type) {
	case bool:
		return v
	case nil:
		return false
	case float64:
		return v != 0
	case string:
		if v != "" && !strings.EqualFold(v, "true") {
			f.notes = append(f.notes, fmt.Sprintf("%s is the text %.64q, which counts as true, as it does for the in-tree connector; write true or false without quotes", field, v))
		}
		return v != ""
	}
	f.fault(field, "%.64s; want true or false", raw)
	return false
}

// Parse reads a configuration file. Notes say what an operator should look at,
// and is no error. The error reports everything that is wrong, one line each.
func Parse(data []byte) (cfg Config, notes []string, err error) {
	if len(data) > maxFileBytes {
		return Config{}, nil, fmt.Errorf("%w: the file has %d bytes, at most %d are read", ErrConfig, len(data), maxFileBytes)
	}
	f := &fields{}
	if err := json.Unmarshal(data, &f.values); err != nil {
		return Config{}, nil, fmt.Errorf("%w: the file is no JSON object: %w", ErrConfig, err)
	}
	cfg = Config{
		MetadataServer: f.text("metadata_server", ""), MasterServerAddress: f.text("master_server_address", ""),
		Protocol: strings.ToLower(f.text("protocol", DefaultProtocol)), DeviceName: f.text("device_name", ""),
		Mode:               Mode(f.text("mode", string(ModeEmbedded))),
		GlobalSegmentBytes: f.size("global_segment_size", DefaultSegmentBytes), LocalBufferBytes: f.size("local_buffer_size", DefaultBufferBytes),
		Offload: f.truth("enable_offload"), TenantID: f.tenant("tenant_id"),
	}
	for _, field := range slices.Sorted(maps.Keys(f.values)) {
		switch {
		case slices.Contains(f.known, field):
		case slices.Contains(others, field):
			f.notes = append(f.notes, field+" is for Mooncake's own programs, and not used")
		default:
			f.notes = append(f.notes, fmt.Sprintf("field %.64q is not known, and not used; known are %s", field, strings.Join(f.known, ", ")))
		}
	}
	if len(f.faults) == 0 {
		f.faults = append(f.faults, cfg.Validate())
	}
	return cfg, f.notes, errors.Join(f.faults...)
}

var (
	sizeText  = regexp.MustCompile(`^([0-9.]+)\s*(gb|mb|kb|b)?$`)
	sizeUnits = map[string]float64{"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}
)

var errSize = errors.New(`want a number of bytes, or text like "512MB" or "4GB"`)

// parseSize reads a size as the in-tree connector does: KB is 1,024 bytes.
func parseSize(raw json.RawMessage) (uint64, error) {
	var text string
	var number json.Number
	switch {
	case json.Unmarshal(raw, &text) == nil && raw[0] == '"':
		match := sizeText.FindStringSubmatch(strings.ToLower(strings.TrimSpace(text)))
		if match == nil {
			return 0, fmt.Errorf("%.64s; %w", raw, errSize)
		}
		value, err := strconv.ParseFloat(match[1], 64)
		if err != nil {
			return 0, fmt.Errorf("%.64s; %w", raw, errSize)
		}
		return wholeBytes(raw, value*sizeUnits[match[2]])
	case json.Unmarshal(raw, &number) == nil && raw[0] != '"' && string(raw) != "null":
		if n, err := strconv.ParseUint(number.String(), 10, 63); err == nil {
			return n, nil
		}
		value, err := number.Float64()
		if err != nil {
			return 0, fmt.Errorf("%.64s; %w", raw, errSize)
		}
		return wholeBytes(raw, value)
	}
	return 0, fmt.Errorf("%.64s; %w", raw, errSize)
}

func wholeBytes(raw json.RawMessage, value float64) (uint64, error) {
	if !(value > -1 && value < math.MaxInt64) {
		return 0, fmt.Errorf("%.64s is out of range; %w", raw, errSize)
	}
	return uint64(max(value, 0)), nil
}
