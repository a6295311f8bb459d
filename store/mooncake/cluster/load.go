package cluster

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
)

// Variables of the in-tree connector.
const (
	EnvPath             = "MOONCAKE_CONFIG_PATH"
	EnvLocalHostname    = "MOONCAKE_REQUESTER_LOCAL_HOSTNAME"
	EnvPreferredSegment = "MOONCAKE_PREFERRED_SEGMENT"
)

// Load reads the file that the environment names, and the variables beside it.
// env is os.Getenv, or a test's.
func Load(env func(name string) string) (cfg Config, notes []string, err error) {
	path := env(EnvPath)
	if path == "" {
		return Config{}, nil, fmt.Errorf("%w: the environment variable %s is not set; it names the cluster's JSON file", ErrConfig, EnvPath)
	}
	file, err := os.Open(path)
	if err != nil {
		return Config{}, nil, fmt.Errorf("%w: %s: %w", ErrConfig, EnvPath, err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return Config{}, nil, fmt.Errorf("%w: %s: %w", ErrConfig, EnvPath, err)
	}
	cfg, notes, err = Parse(data)
	if err != nil {
		return Config{}, notes, fmt.Errorf("%s: %w", path, err)
	}
	cfg.LocalHostname = strings.TrimSpace(env(EnvLocalHostname))
	cfg.PreferredSegment = strings.TrimSpace(env(EnvPreferredSegment))
	return cfg, notes, nil
}

// FindLocalHostname returns LocalHostname, or the address of this node on the way
// to the master: no packet is sent.
func (c *Config) FindLocalHostname() (string, error) {
	if c.LocalHostname != "" {
		return c.LocalHostname, nil
	}
	conn, err := net.Dial("udp", c.MasterServerAddress)
	if err != nil {
		return "", fmt.Errorf("%w: no way to the master at %s: %w; say %s", ErrConfig, c.MasterServerAddress, err, EnvLocalHostname)
	}
	defer conn.Close()
	address, ok := conn.LocalAddr().(*net.UDPAddr)
	if !ok {
		return "", fmt.Errorf("%w: %w", ErrConfig, errors.ErrUnsupported)
	}
	return address.IP.String(), nil
}
