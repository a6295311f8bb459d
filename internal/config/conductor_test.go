package config

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// conductorFrom loads a configuration with variables and flags, in a home of its own.
func conductorFrom(t *testing.T, variables, flags map[string]string) (*ConductorConfig, map[string]Setting, error) {
	t.Helper()
	lookup := func(of map[string]string) func(string) (string, bool) {
		return func(name string) (string, bool) { v, ok := of[name]; return v, ok }
	}
	c, settings, err := LoadConductor(Source{Env: lookup(variables), Flag: lookup(flags)})
	by := map[string]Setting{}
	for _, s := range settings {
		by[s.Key] = s
	}
	return c, by, err
}

func contractFile(t *testing.T, text string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), ".mooncake")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "conductor_config.json")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// The example of Mooncake Conductor's documentation.
const contractExample = `{"http_server_port": 13334, "kvevent_instance": {
  "vllm-prefill-node1": {"endpoint": "tcp://127.0.0.1:5557", "replay_endpoint": "tcp://127.0.0.1:5558", "type": "vLLM", "modelname": "qwen2.5", "lora_name": "",
    "tenant_id": "default", "instance_id": "vllm-prefill-node1", "block_size": 128, "dp_rank": 0, "additionalsalt": ""},
  "b": {"endpoint": "tcp://127.0.0.1:6557", "type": "Mooncake", "modelname": "m", "block_size": 16, "dp_rank": 1, "unknown": [1]}}}`

func TestContractFile(t *testing.T) {
	name := contractFile(t, contractExample)
	home := filepath.Dir(filepath.Dir(name))
	want := []StaticService{
		{Entry: "b", Instance: "b", Endpoint: "tcp://127.0.0.1:6557", Type: "Mooncake", Model: "m", BlockTokens: 16, Rank: 1},
		{Entry: "vllm-prefill-node1", Instance: "vllm-prefill-node1", Endpoint: "tcp://127.0.0.1:5557", ReplayEndpoint: "tcp://127.0.0.1:5558", Type: "vLLM", Model: "qwen2.5", Tenant: "default", BlockTokens: 128},
	}
	for how, variables := range map[string]map[string]string{"by its place": {"HOME": home}, "by the variable": {"CONDUCTOR_CONFIG_PATH": name, "HOME": "/nonexistent"}, "by ours": {"MOONCAKE_SIDECAR_CONTRACT_FILE": name}} {
		c, settings, err := conductorFrom(t, variables, nil)
		if err != nil || !reflect.DeepEqual(c.Static, want) || c.Listen != ":13334" || len(c.Notes) != 1 || !strings.Contains(c.Notes[0], "token_file") {
			t.Errorf("%s: %v: %+v", how, err, c)
		}
		if s := settings["listen"]; s.Origin != FromFile || s.Where != name || s.Value != ":13334" {
			t.Errorf("%s: %+v", how, s)
		}
	}
	c, _, err := conductorFrom(t, map[string]string{"HOME": home}, map[string]string{"listen": "127.0.0.1:1", "log-level": "warn"})
	if err != nil || c.Listen != "127.0.0.1:1" || c.AllowRemote || len(c.Notes) != 0 || len(c.Static) != 2 {
		t.Errorf("a flag goes before the file: %v, %+v", err, c)
	}
	c, _, err = conductorFrom(t, map[string]string{"HOME": home}, map[string]string{"allow-remote": "false"})
	if err != nil || c.Listen != "127.0.0.1:13334" || c.AllowRemote || len(c.Notes) != 0 {
		t.Errorf("the file lets in others though it was said that they may not: %v, %+v", err, c)
	}
	// Without a port the documented one, and not 0.
	c, _, err = conductorFrom(t, map[string]string{"CONDUCTOR_CONFIG_PATH": contractFile(t, `{}`)}, nil)
	if err != nil || c.Listen != ":13333" || c.Static != nil {
		t.Errorf("%v, %+v", err, c)
	}
	c, _, err = conductorFrom(t, nil, nil)
	if err != nil || c.Listen != "127.0.0.1:13333" || len(c.Notes) != 0 {
		t.Errorf("%v, %+v", err, c)
	}
	c, _, err = conductorFrom(t, map[string]string{"CONDUCTOR_CONFIG_PATH": "/nonexistent/c.json"}, nil)
	if err != nil || c.Listen != "127.0.0.1:13333" || len(c.Notes) != 1 || !strings.Contains(c.Notes[0], "/nonexistent/c.json") {
		t.Errorf("a file that is not there: %v, %+v", err, c)
	}
	for text, says := range map[string]string{`{`: "unexpected end", `{"http_server_port": 70000}`: "http_server_port"} {
		if _, _, err := conductorFrom(t, map[string]string{"CONDUCTOR_CONFIG_PATH": contractFile(t, text)}, nil); err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "conductor_config.json") {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, _, err := conductorFrom(t, nil, map[string]string{"contract-file": "/nonexistent"}); err == nil {
		t.Error("a file that is not there, and was asked for, is no fault")
	}
}

// An entry with a fault is not the end of the others.
func TestContractEntryWithFault(t *testing.T) {
	_, services, err := parseContract([]byte(`{"kvevent_instance":{"a":{"endpoint":"tcp://h:1","block_size":"16"},"b":{"endpoint":"tcp://h:2","modelname":"m"},"c":7}}`))
	if err != nil || len(services) != 3 || services[0].Fault == nil || services[1].Fault != nil || services[1].Type != "vLLM" || services[2].Fault == nil {
		t.Errorf("%+v, %v", services, err)
	}
}

func FuzzParseContract(f *testing.F) {
	f.Add([]byte(contractExample))
	f.Add([]byte(`{"http_server_port":-1,"kvevent_instance":{"a":null,"":{"block_size":"x"}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, services, err := parseContract(data)
		if err != nil && services != nil {
			t.Error("services of a file that is refused")
		}
		for _, s := range services {
			if s.Fault == nil && s.Type == "" || s.Instance == "" && s.Entry != "" {
				t.Errorf("%+v", s)
			}
		}
	})
}

func TestContractVariables(t *testing.T) {
	c, settings, err := conductorFrom(t, map[string]string{"CONDUCTOR_LOG_LEVEL": "Debug", "CONDUCTOR_SEED": "0x10"}, nil)
	seed, ok, seedErr := c.SeedNumber()
	if err != nil || c.LogLevel != "debug" || seed != 16 || !ok || seedErr != nil || settings["log_level"].Where != "CONDUCTOR_LOG_LEVEL" || settings["seed"].Origin != FromEnv {
		t.Errorf("%v, %+v, %+v", err, c, settings["log_level"])
	}
	c, settings, err = conductorFrom(t, map[string]string{"CONDUCTOR_LOG_LEVEL": "DEBUG", "MOONCAKE_SIDECAR_LOG_LEVEL": "error"}, nil)
	if err != nil || c.LogLevel != "error" || settings["log_level"].Where != "MOONCAKE_SIDECAR_LOG_LEVEL" {
		t.Errorf("ours goes before: %v, %+v", err, c)
	}
	if c, _, err = conductorFrom(t, map[string]string{"CONDUCTOR_LOG_LEVEL": "chatty"}, nil); err != nil || c.LogLevel != "info" || len(c.Notes) != 1 {
		t.Errorf("%v, %+v", err, c)
	}
	if _, ok, _ := c.SeedNumber(); ok {
		t.Error("a seed that nobody said")
	}
}

func TestConductorFaults(t *testing.T) {
	for flag, c := range map[string]struct{ value, says string }{
		"listen":             {"0.0.0.0:1", "token_file"},
		"grpc-listen":        {"127.0.0.1:13333", "another port"},
		"tls-cert-file":      {"/c", "tls_key_file"},
		"tls-client-ca-file": {"/c", "tls_cert_file"},
		"token-file":         {"tokens", "absolute"},
		"index-bytes":        {"1MiB", "index_bytes"},
		"max-services":       {"-1", "max_services"},
		"max-body-bytes":     {"1", "max_body_bytes"},
		"snapshot-interval":  {"1s", "snapshot_interval"},
		"peers":              {"10.0.0.1", "peers"},
		"engines":            {"a=http://h:1,a=http://h:2", "twice"},
		"seed":               {"x", "seed"},
		"ttft":               {"-1s", "ttft"},
		"attempts":           {"99", "attempts"},
		"copy-after":         {"-1", "copy_after"},
		"max-waiting":        {"-1", "max_waiting"},
		"tokenize-timeout":   {"1ns", "tokenize_timeout"},
		"first-byte-timeout": {"1ms", "first_byte_timeout"},
	} {
		if _, _, err := conductorFrom(t, nil, map[string]string{flag: c.value}); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("--%s %s: %v", flag, c.value, err)
		}
	}
	for _, flags := range []map[string]string{
		{"listen": "0.0.0.0:1", "allow-remote": "true"}, {"listen": ":1", "token-file": "/t"}, {"listen": "[::]:1", "tls-client-ca-file": "/a", "tls-cert-file": "/c", "tls-key-file": "/k"},
	} {
		if _, _, err := conductorFrom(t, nil, flags); err != nil {
			t.Errorf("%v: %v", flags, err)
		}
	}
}

func TestParseEngines(t *testing.T) {
	got, err := ParseEngines("http://10.0.0.1:8000/, p=https://h;prefill;ranks=2;store=/run/m\nhttp://h:1/x;decode")
	want := []Engine{{Name: "10.0.0.1:8000", URL: "http://10.0.0.1:8000"}, {Name: "p", URL: "https://h", Role: "prefill", Ranks: 2, Store: "/run/m"}, {Name: "h:1/x", URL: "http://h:1/x", Role: "decode"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{"h:1", "ftp://h", "http://", "http://h;master", "http://h;ranks=0", "http://h;ranks=x", "http://h;store=m", "http://u:p@h", "http://h?x=1", "=http://h:1,=http://h:2;x"} {
		if got, err := ParseEngines(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}
