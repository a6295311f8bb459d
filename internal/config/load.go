package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
)

// Source says where settings come from, in falling precedence.
type Source struct {
	// Flag returns the value of a flag that was given.
	Flag func(name string) (value string, given bool)
	// Env looks up an environment variable; nil is os.LookupEnv.
	Env func(name string) (value string, given bool)
	// File is the configuration file, empty for none.
	File string
	// Root is the root file system; nil is the machine's.
	Root fs.FS
}

// Origin says where a value comes from.
type Origin string

// The origins, the one that wins first.
const (
	FromFlag    Origin = "flag"
	FromEnv     Origin = "environment"
	FromFile    Origin = "file"
	FromDefault Origin = "default"
)

// Setting is an effective value.
type Setting struct {
	Section string `json:"section,omitempty"`
	Key     string `json:"key"`
	Value   string `json:"value"`
	Origin  Origin `json:"origin"`
	// Where is the flag, the variable, or file and line.
	Where string `json:"where,omitempty"`
	// Reloads: a running daemon takes a new value when it reads the file again.
	Reloads bool `json:"reloads"`
	// NotInFile: it can't be written into a file.
	NotInFile bool `json:"not_in_file,omitempty"`
}

// LoadLookupd reads the configuration of mooncake-lookupd, and says of every
// setting where it comes from. The error lists all faults; beside it the
// configuration is as far as it could be read.
func LoadLookupd(src Source) (*LookupdConfig, []Setting, error) {
	c := &LookupdConfig{}
	settings, err := src.load(c.Fields(), func() { c.SetDefaults(src.root()) })
	return c, settings, errors.Join(err, c.Validate())
}

// LoadWorker is LoadLookupd for mooncake-worker.
func LoadWorker(src Source) (*WorkerConfig, []Setting, error) {
	c := &WorkerConfig{}
	settings, err := src.load(c.Fields(), c.SetDefaults)
	return c, settings, errors.Join(err, c.Validate())
}

// CheckFile reports every fault of a configuration file, of all daemons'
// sections. Flags and the environment play no part.
func CheckFile(name string, root fs.FS) error {
	src := Source{File: name, Root: root, Env: func(string) (string, bool) { return "", false }}
	values, err := src.readFile()
	lookupd, worker, conductor := &LookupdConfig{}, &WorkerConfig{}, &ConductorConfig{}
	faults := []error{err, inFile(name, errors.Join(apply(lookupd.Fields(), values), apply(worker.Fields(), section(values, SectionWorker)),
		apply(conductor.Fields(), section(values, SectionConductor))))}
	worker.Common, conductor.Common = lookupd.Common, lookupd.Common
	lookupd.SetDefaults(src.root())
	worker.SetDefaults()
	conductor.SetDefaults(src.root())
	faults = append(faults, inFile(name, errors.Join(slices.Concat(lookupd.Common.faults(), lookupd.faults(), worker.faults(), conductor.faults())...)))
	return errors.Join(faults...)
}

// section returns a section's values.
func section(values []fileValue, name string) (of []fileValue) {
	for _, v := range values {
		if v.section == name {
			of = append(of, v)
		}
	}
	return of
}

// MachineRoot is the root file system of the machine.
func MachineRoot() fs.FS { return os.DirFS("/") }

func (src *Source) root() fs.FS {
	if src.Root != nil {
		return src.Root
	}
	return MachineRoot()
}

// load applies the file, then the environment, then the flags, and fills in the
// defaults.
func (src *Source) load(fields []Field, setDefaults func()) ([]Setting, error) {
	values, err := src.readFile()
	faults := []error{err, inFile(src.File, apply(fields, values))}
	settings := make([]Setting, len(fields))
	for i := range fields {
		f := &fields[i]
		settings[i] = Setting{Section: f.Section, Key: f.Key, Origin: FromDefault, Reloads: f.Reloads, NotInFile: f.NotInFile}
		if at := slices.IndexFunc(values, f.is); at >= 0 {
			settings[i].Origin, settings[i].Where = FromFile, fmt.Sprintf("%s:%d", src.File, values[at].line)
		}
		if err := src.overlay(f, &settings[i]); err != nil {
			faults = append(faults, err)
		}
	}
	setDefaults()
	for i := range fields {
		settings[i].Value = fields[i].Get()
	}
	return settings, errors.Join(faults...)
}

// is tells whether a value of the file is this field's.
func (f *Field) is(v fileValue) bool { return v.section == f.Section && v.key == f.Key && !f.NotInFile }

// apply sets the fields that the file has.
func apply(fields []Field, values []fileValue) error {
	var faults []error
	for i := range fields {
		if at := slices.IndexFunc(values, fields[i].is); at >= 0 {
			if err := fields[i].Set(values[at].text); err != nil {
				faults = append(faults, fmt.Errorf("line %d: %s: %w", values[at].line, fields[i].Key, err))
			}
		}
	}
	return errors.Join(faults...)
}

// overlay applies the environment or the flag to one field.
func (src *Source) overlay(field *Field, setting *Setting) error {
	env := src.Env
	if env == nil {
		env = os.LookupEnv
	}
	origin, where, text := FromEnv, field.Env(), ""
	value, given := env(field.Env())
	if given = given && value != ""; given {
		text = value
	}
	if src.Flag != nil {
		if value, set := src.Flag(field.Flag()); set {
			origin, where, text, given = FromFlag, "--"+field.Flag(), value, true
		}
	}
	if !given {
		return nil
	}
	setting.Origin, setting.Where = origin, where
	if err := field.Set(text); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	return nil
}
