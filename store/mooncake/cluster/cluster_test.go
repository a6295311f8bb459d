package cluster_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/store/mooncake/cluster"
)

// inTree is what the in-tree connector makes of one file.
type inTree struct {
	File  string `json:"file"`
	Error string `json:"error"`
	Read  struct {
		MetadataServer      string `json:"metadata_server"`
		MasterServerAddress string `json:"master_server_address"`
		Protocol            string `json:"protocol"`
		DeviceName          string `json:"device_name"`
		Mode                string `json:"mode"`
		GlobalSegmentSize   uint64 `json:"global_segment_size"`
		LocalBufferSize     uint64 `json:"local_buffer_size"`
		EnableOffload       bool   `json:"enable_offload"`
		TenantID            string `json:"tenant_id"`
	} `json:"read"`
}

// TestAsInTree: what the in-tree connector takes means the same here, and what it
// refuses is refused.
func TestAsInTree(t *testing.T) {
	golden, err := os.ReadFile("testdata/intree.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []inTree
	if err := json.Unmarshal(golden, &cases); err != nil {
		t.Fatal(err)
	}
	taken := 0
	for _, c := range cases {
		got, _, err := cluster.Parse([]byte(c.File))
		if c.Error != "" {
			if err == nil {
				t.Errorf("%s\nis refused by the in-tree connector (%s), and taken here", c.File, c.Error)
			}
			continue
		}
		taken++
		r := c.Read
		want := cluster.Config{
			MetadataServer: r.MetadataServer, MasterServerAddress: r.MasterServerAddress, Protocol: r.Protocol, DeviceName: r.DeviceName,
			Mode: cluster.Mode(r.Mode), GlobalSegmentBytes: r.GlobalSegmentSize, LocalBufferBytes: r.LocalBufferSize, Offload: r.EnableOffload,
			TenantID: r.TenantID,
		}
		if err != nil || got != want {
			t.Errorf("%s\ngot  %+v, %v\nwant %+v", c.File, got, err, want)
		}
	}
	if taken < 15 || len(cases)-taken < 10 {
		t.Errorf("%d files taken and %d refused: too few to tell", taken, len(cases)-taken)
	}
}

// TestGoldenIsTheirs: the golden file is what the installed vLLM says.
func TestGoldenIsTheirs(t *testing.T) {
	python := os.Getenv("MOONCAKE_SIDECAR_PYTHON")
	if python == "" {
		t.Skip("MOONCAKE_SIDECAR_PYTHON names no interpreter with vLLM")
	}
	theirs := exec.CommandContext(t.Context(), python, "-I", "testdata/intree.py")
	theirs.Stderr = os.Stderr
	out, err := theirs.Output()
	if err != nil {
		t.Fatal(err)
	}
	golden, err := os.ReadFile("testdata/intree.json")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out, golden) {
		t.Error("testdata/intree.json is not what the in-tree connector says; look at the difference, then write it anew with testdata/intree.py")
	}
}

func TestFaultsSayWhatToDo(t *testing.T) {
	const server = `"metadata_server": "P2PHANDSHAKE", "master_server_address": "m:1"`
	for file, wants := range map[string][]string{
		`{}`:                                                           {"master_server_address", "10.0.0.1:50051", "metadata_server", "P2PHANDSHAKE"},
		`{` + server + `, "protocol": "tcpp"}`:                         {`protocol: "tcpp"`, "rdma"},
		`{` + server + `, "protocol": 7}`:                              {"protocol: 7 is no text"},
		`{` + server + `, "mode": "remote"}`:                           {`mode: "remote"`, "standalone-store"},
		`{` + server + `, "global_segment_size": "4 GiB"}`:             {`global_segment_size: "4 GiB"`, `"4GB"`},
		`{` + server + `, "global_segment_size": true}`:                {"global_segment_size: true"},
		`{` + server + `, "global_segment_size": 1e40}`:                {"out of range"},
		`{` + server + `, "mode": "standalone-store"}`:                 {"global_segment_size", "mode embedded"},
		`{` + server + `, "local_buffer_size": 0, "protocol": "nope"}`: {"local_buffer_size", `protocol: "nope"`},
		`{` + server + `, "enable_offload": [1]}`:                      {"enable_offload: [1]", "true or false"},
		`{"master_server_address": "10.0.0.1"}`:                        {"master_server_address", "host and port"},
		`null`:                                                         {"master_server_address"},
		`[]`:                                                           {"no JSON object"},
		strings.Repeat(" ", 1<<20) + `{}`:                              {"at most"},
	} {
		_, _, err := cluster.Parse([]byte(file))
		if !errors.Is(err, cluster.ErrConfig) {
			t.Errorf("%.80s: %v, want ErrConfig", file, err)
			continue
		}
		for _, want := range wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%.80s: the error does not say %q:\n%s", file, want, err)
			}
		}
	}
}

func TestNotes(t *testing.T) {
	_, notes, err := cluster.Parse([]byte(`{"metadata_server": "P2PHANDSHAKE", "master_server_address": "m:1", "protocoll": "tcp", "local_hostname": "x",
		"enable_offload": "false"}`))
	if err != nil || len(notes) != 3 {
		t.Fatalf("%q, %v; want three notes", notes, err)
	}
	all := strings.Join(notes, "\n")
	for _, want := range []string{`"protocoll" is not known`, "local_hostname is for Mooncake's own", "counts as true"} {
		if !strings.Contains(all, want) {
			t.Errorf("no note says %q:\n%s", want, all)
		}
	}
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mooncake.json")
	if err := os.WriteFile(path, []byte(`{"metadata_server": "P2PHANDSHAKE", "master_server_address": "127.0.0.1:50051", "protocol": "TCP"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"MOONCAKE_CONFIG_PATH": path, "MOONCAKE_PREFERRED_SEGMENT": " node:1 "}
	cfg, notes, err := cluster.Load(func(name string) string { return env[name] })
	if err != nil || len(notes) != 0 || cfg.PreferredSegment != "node:1" || cfg.Protocol != "tcp" {
		t.Fatalf("%+v, %q, %v", cfg, notes, err)
	}
	if name, err := cfg.FindLocalHostname(); err != nil || name != "127.0.0.1" {
		t.Errorf("local host name %q, %v", name, err)
	}
	env["MOONCAKE_REQUESTER_LOCAL_HOSTNAME"] = "me"
	if cfg, _, err = cluster.Load(func(name string) string { return env[name] }); err != nil || cfg.LocalHostname != "me" {
		t.Errorf("%+v, %v", cfg, err)
	}
	if _, _, err := cluster.Load(func(string) string { return "" }); !errors.Is(err, cluster.ErrConfig) || !strings.Contains(err.Error(), "MOONCAKE_CONFIG_PATH") {
		t.Errorf("without the variable: %v", err)
	}
	env["MOONCAKE_CONFIG_PATH"] = path + ".not"
	if _, _, err := cluster.Load(func(name string) string { return env[name] }); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	golden, err := os.ReadFile("testdata/intree.json")
	if err != nil {
		f.Fatal(err)
	}
	var cases []inTree
	if err := json.Unmarshal(golden, &cases); err != nil {
		f.Fatal(err)
	}
	for _, c := range cases {
		f.Add([]byte(c.File))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, _, err := cluster.Parse(data)
		if err == nil && cfg.Validate() != nil {
			t.Errorf("taken although it is not valid: %+v", cfg)
		}
		if err != nil && !errors.Is(err, cluster.ErrConfig) {
			t.Errorf("an error of another kind: %v", err)
		}
	})
}
