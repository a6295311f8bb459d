package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// StaticService is an entry of a conductor_config.json.
type StaticService struct {
	// Entry is its name in the file.
	Entry string `json:"-"`
	// Fault is why it can't be read; nil for most.
	Fault          error  `json:"-"`
	Endpoint       string `json:"endpoint"`
	ReplayEndpoint string `json:"replay_endpoint"`
	Type           string `json:"type"`
	Model          string `json:"modelname"`
	LoRA           string `json:"lora_name"`
	Tenant         string `json:"tenant_id"`
	// Instance is the entry's name where the file says none.
	Instance       string `json:"instance_id"`
	BlockTokens    int    `json:"block_size"`
	Rank           int    `json:"dp_rank"`
	AdditionalSalt string `json:"additionalsalt"`
	Topic          string `json:"topic"`
	// Hash are the fields of hash_profile that we read.
	Hash struct {
		Algorithm string `json:"algorithm"`
		Seed      string `json:"python_hash_seed"`
	} `json:"hash_profile"`
}

// maxContractBytes bounds a conductor_config.json.
const maxContractBytes = 16 << 20

// parseContract reads a conductor_config.json. port is "" where it says none.
func parseContract(data []byte) (port string, services []StaticService, err error) {
	var file struct {
		Port     *int                       `json:"http_server_port"`
		Services map[string]json.RawMessage `json:"kvevent_instance"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return "", nil, fmt.Errorf("%w: %w", ErrValue, err)
	}
	if file.Port != nil {
		if *file.Port < 0 || *file.Port > 65535 {
			return "", nil, fault("http_server_port", "%d; want a number up to 65535", *file.Port)
		}
		port = fmt.Sprint(*file.Port)
	}
	for _, name := range slices.Sorted(maps.Keys(file.Services)) {
		var s StaticService
		if err := json.Unmarshal(file.Services[name], &s); err != nil {
			s = StaticService{Fault: err} // the others are none the worse
		}
		if s.Entry = name; s.Instance == "" {
			s.Instance = name
		}
		if s.Type == "" {
			s.Type = "vLLM"
		}
		services = append(services, s)
	}
	return port, services, nil
}

// LoadConductor is LoadLookupd for mooncake-conductor. What Mooncake Conductor reads is
// read, too, behind all of ours: its file, and its variables.
func LoadConductor(src Source) (*ConductorConfig, []Setting, error) {
	c := &ConductorConfig{}
	var contractErr error
	var settings []Setting
	var from contractOrigins
	fields, said := c.Fields(), false // about allow_remote
	for i := range fields {
		if f := &fields[i]; f.Key == "allow_remote" {
			set := f.Set
			f.Set = func(text string) error { said = true; return set(text) }
		}
	}
	settings, err := src.load(fields, func() {
		from, contractErr = c.readContract(&src, said)
		c.SetDefaults(src.root())
	})
	for i := range settings {
		if where := from[settings[i].Key]; where != "" && settings[i].Origin == FromDefault {
			settings[i].Origin, settings[i].Where = FromFile, where
			if !strings.HasPrefix(where, "/") {
				settings[i].Origin = FromEnv
			}
		}
	}
	return c, settings, errors.Join(err, contractErr, c.Validate())
}

// contractOrigins says which settings come from Mooncake Conductor's file and variables.
type contractOrigins map[string]string

// readContract fills in what is unset from what Mooncake Conductor reads. said: whether
// other machines may come in was said, and is not for the file to say.
func (c *ConductorConfig) readContract(src *Source, said bool) (contractOrigins, error) {
	env := src.Env
	if env == nil {
		env = os.LookupEnv
	}
	from := contractOrigins{}
	if level, ok := env("CONDUCTOR_LOG_LEVEL"); ok && level != "" && c.LogLevel == "" {
		if _, err := ParseLevel(strings.ToLower(level)); err != nil {
			c.Notes = append(c.Notes, fmt.Sprintf("CONDUCTOR_LOG_LEVEL is %.40q, which is no level: it is info", level))
		} else {
			c.LogLevel, from["log_level"] = strings.ToLower(level), "CONDUCTOR_LOG_LEVEL"
		}
	}
	if seed, ok := env("CONDUCTOR_SEED"); ok && seed != "" && c.Seed == "" {
		c.Seed, from["seed"] = seed, "CONDUCTOR_SEED"
	}
	named := true
	if c.ContractFile == "" {
		named = false
		path, ok := env("CONDUCTOR_CONFIG_PATH")
		if ok = ok && path != ""; ok {
			from["contract_file"] = "CONDUCTOR_CONFIG_PATH"
		} else if home, _ := env("HOME"); filepath.IsAbs(home) {
			path = filepath.Join(home, ".mooncake", "conductor_config.json")
		}
		if path == "" {
			return from, nil
		}
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			if ok {
				c.Notes = append(c.Notes, "there is no file "+path+", which CONDUCTOR_CONFIG_PATH names: no services are registered from it")
			}
			return from, nil
		}
		c.ContractFile = path
	}
	port, services, err := readContractFile(c.ContractFile)
	if err != nil {
		if !named {
			err = fmt.Errorf("%w (it is read as Mooncake Conductor's; contract_file names another)", err)
		}
		return from, err
	}
	c.Static = services
	if c.Listen == "" {
		// Whoever has such a file has clients of that service, which is reached from
		// everywhere.
		if port == "" {
			port = DefaultConductorPort
		}
		c.Listen = ":" + port
		from["listen"] = c.ContractFile
		protected := c.TokenFile != "" || c.TLSClientCAFile != ""
		switch {
		case !said:
			c.AllowRemote = true
			from["allow_remote"] = c.ContractFile
		case !c.AllowRemote && !protected:
			c.Listen = "127.0.0.1:" + port
		}
		if c.AllowRemote && !protected {
			c.Notes = append(c.Notes, "as Mooncake Conductor does, this one answers everybody who reaches "+c.Listen+"; say token_file or tls_client_ca_file to let in some, or listen")
		}
	}
	return from, nil
}

func readContractFile(name string) (port string, services []StaticService, err error) {
	file, err := os.Open(name)
	if err != nil {
		return "", nil, fmt.Errorf("contract file: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(file, maxContractBytes+1))
	if err := errors.Join(err, file.Close()); err != nil {
		return "", nil, fmt.Errorf("contract file: %w", err)
	}
	if len(data) > maxContractBytes {
		return "", nil, fmt.Errorf("contract file %s: %w: more than %s", name, ErrValue, Size(maxContractBytes))
	}
	if port, services, err = parseContract(data); err != nil {
		return "", nil, fmt.Errorf("contract file %s: %w", name, err)
	}
	return port, services, nil
}
