package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// shimKey is a key of kv_connector_extra_config.
type shimKey struct{ name, typ, def, help string }

var (
	// A field of the dataclass with the text below it. Fields are read only within
	// the class, so that nothing else can look like one.
	shimClass  = regexp.MustCompile(`(?s)\nclass Settings:\n(.*?)\n\n\n`)
	shimField  = regexp.MustCompile(`(?m)^    (\w+): ([\w\[\], .|]+) = (.+)\n(?:    """((?s:.*?))"""\n)?`)
	shimParser = regexp.MustCompile(`(?s)\n_PARSERS: .*? = \{\n(.*?)\n\}\n`)
	shimNoOps  = regexp.MustCompile(`(?s)\n_WITHOUT_EFFECT = \{\n(.*?)\n\}\n`)
	shimEntry  = regexp.MustCompile(`(?m)^    "(\w+)": (.*),$`)
)

// readShim reads the keys out of the connector's configuration module: those
// with a meaning, and those that are accepted without one, with the reason.
func readShim(source string) (keys, without []shimKey, err error) {
	class, parsers, noOps := shimClass.FindStringSubmatch(source), shimParser.FindStringSubmatch(source), shimNoOps.FindStringSubmatch(source)
	if class == nil || parsers == nil || noOps == nil {
		return nil, nil, errors.New("the module has no Settings, _PARSERS or _WITHOUT_EFFECT where they are looked for")
	}
	accepted := map[string]bool{}
	for _, entry := range shimEntry.FindAllStringSubmatch(parsers[1], -1) {
		accepted[entry[1]] = true
	}
	for _, f := range shimField.FindAllStringSubmatch(class[1]+"\n", -1) {
		name, help := f[1], strings.Join(strings.Fields(f[4]), " ")
		if !accepted[name] {
			continue // not a key: what the parser leaves for the connector
		}
		delete(accepted, name)
		if help == "" {
			return nil, nil, fmt.Errorf("%s has no text below it", name)
		}
		typ, def, err := shimValue(name, f[2], f[3])
		if err != nil {
			return nil, nil, err
		}
		keys = append(keys, shimKey{name: name, typ: typ, def: def, help: help})
	}
	for name := range accepted {
		return nil, nil, fmt.Errorf("%s is parsed and is no field of Settings", name)
	}
	for _, entry := range shimEntry.FindAllStringSubmatch(noOps[1], -1) {
		without = append(without, shimKey{name: entry[1], help: strings.Trim(entry[2], `"`)})
	}
	return keys, without, nil
}

// shimValue says how a value is written, and the default in that form.
func shimValue(name, annotation, def string) (typ, written string, err error) {
	switch {
	case name == "store_retention":
		return "text or number", `"engine"`, nil
	case annotation == "tuple[int, ...]":
		return "list of numbers", "", nil
	case annotation == "bool":
		return "true/false", strings.ToLower(def), nil
	case annotation == "bool | None":
		return "true/false", "", nil // the text below it says what holds then
	case annotation == "str" && def == `""`:
		return "text", "", nil
	case annotation == "str":
		return "text", strings.Trim(def, `"`), nil
	case strings.HasSuffix(name, "_bytes") && def == "None":
		return "size", "", nil // the text below it says what holds then
	case strings.HasSuffix(name, "_ms"):
		return "milliseconds", def, nil
	case annotation == "float":
		return "time", strings.TrimSuffix(def, ".0") + "s", nil
	case annotation == "int" && strings.HasSuffix(name, "_s"):
		return "time", def + "s", nil
	case annotation == "int":
		return "number", def, nil
	}
	return "", "", fmt.Errorf("%s: no words for a %s", name, annotation)
}
