package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"gopkg.in/yaml.v3"
)

// maxFileBytes bounds a configuration file.
const maxFileBytes = 1 << 20

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

// file is the layout of the configuration file.
type file struct {
	Common  `yaml:",inline"`
	Lookupd LookupdConfig `yaml:"lookupd"`
	Worker  WorkerConfig  `yaml:"worker"`
}

// LoadLookupd reads the configuration of mooncake-lookupd. The error lists all
// faults.
func LoadLookupd(src Source) (*LookupdConfig, error) {
	f, err := src.readFile()
	if err != nil {
		return nil, err
	}
	c := &f.Lookupd
	c.Common = f.Common
	err = src.overlay(c.Fields())
	c.SetDefaults(src.root())
	return c, errors.Join(err, c.Validate())
}

// LoadWorker reads the configuration of mooncake-worker. The error lists all
// faults.
func LoadWorker(src Source) (*WorkerConfig, error) {
	f, err := src.readFile()
	if err != nil {
		return nil, err
	}
	c := &f.Worker
	c.Common = f.Common
	err = src.overlay(c.Fields())
	c.SetDefaults()
	return c, errors.Join(err, c.Validate())
}

func (src *Source) root() fs.FS {
	if src.Root != nil {
		return src.Root
	}
	return os.DirFS("/")
}

// readFile reads the file, if there is to be one.
func (src *Source) readFile() (*file, error) {
	if src.File == "" {
		return &file{}, nil
	}
	handle, err := os.Open(src.File)
	if err != nil {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(handle, maxFileBytes+1))
	if err := errors.Join(err, handle.Close()); err != nil {
		return nil, fmt.Errorf("configuration file: %w", err)
	}
	f, err := parseFile(data)
	if err != nil {
		return nil, fmt.Errorf("configuration file %s: %w", src.File, err)
	}
	return f, nil
}

// parseFile reads YAML and refuses keys that no struct has.
func parseFile(data []byte) (*file, error) {
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("%w: more than %s", ErrValue, Size(maxFileBytes))
	}
	f := &file{}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(f); err != nil && !errors.Is(err, io.EOF) { // EOF: an empty file
		return nil, err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: more than one document", ErrValue)
	}
	return f, nil
}

// overlay applies the environment and then the flags.
func (src *Source) overlay(fields []Field) error {
	env := src.Env
	if env == nil {
		env = os.LookupEnv
	}
	var faults []error
	for i := range fields {
		field := &fields[i]
		if src.Flag != nil {
			if value, given := src.Flag(field.Flag()); given {
				if err := field.Set(value); err != nil {
					faults = append(faults, fmt.Errorf("--%s: %w", field.Flag(), err))
				}
				continue
			}
		}
		if value, given := env(field.Env()); given && value != "" {
			if err := field.Set(value); err != nil {
				faults = append(faults, fmt.Errorf("%s: %w", field.Env(), err))
			}
		}
	}
	return errors.Join(faults...)
}
