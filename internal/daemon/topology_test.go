package daemon

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/mooncake-sidecar/sidecar/internal/config"
	"github.com/mooncake-sidecar/sidecar/internal/topology"
)

// oneGPU is a driver with a GPU that it says is next to node 1.
type oneGPU struct{}

func (oneGPU) GPUs() ([]topology.DriverGPU, error) {
	return []topology.DriverGPU{{Name: "NVIDIA H100", UUID: "GPU-1", Address: "0000:3b:00.0", Node: 1}}, nil
}

func twoNodes() fstest.MapFS {
	text := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	return fstest.MapFS{
		"sys/devices/system/node/node0/cpulist": text("0-3\n"),
		"sys/devices/system/node/node1/cpulist": text("4-7\n"),
		"proc/self/status":                      text("Cpus_allowed_list:\t2-5\nMems_allowed_list:\t0-1\n"),
	}
}

func TestPlaceWorker(t *testing.T) {
	for name, c := range map[string]struct {
		device, affinity string
		env              map[string]string
		refuse           error
		files            map[string]string
		want             []int
		log              string
	}{
		"next to the GPU":       {device: "cuda-0", want: []int{4, 5}, log: `threads="CPUs 4-5"`},
		"by UUID":               {device: "cuda-0", env: map[string]string{"CUDA_VISIBLE_DEVICES": "GPU-1"}, want: []int{4, 5}, log: "numa_node=1"},
		"affinity off":          {device: "cuda-0", affinity: "off", log: "affinity: off"},
		"refused":               {device: "cuda-0", refuse: errors.New("not permitted"), want: []int{4, 5}, log: "level=WARN"},
		"no such GPU":           {device: "cuda-1", log: "CUDA shows 1 here"},
		"hidden":                {device: "cuda-0", env: map[string]string{"CUDA_VISIBLE_DEVICES": ""}, log: "CUDA_VISIBLE_DEVICES is empty"},
		"the host":              {device: "host-0", log: "CPUs of several nodes"},
		"a file that is broken": {device: "cuda-0", files: map[string]string{"proc/self/status": "Cpus_allowed_list: x"}, log: "can't be read"},
	} {
		cfg := &config.WorkerConfig{Device: c.device, Affinity: c.affinity}
		cfg.SetDefaults()
		if err := cfg.Validate(); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		var got []int
		root := twoNodes()
		for file, text := range c.files {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		p := placing{
			root: root, driver: oneGPU{}, log: slog.New(slog.NewTextHandler(&log, nil)),
			env:         func(name string) (string, bool) { value, set := c.env[name]; return value, set },
			setAffinity: func(cpus []int) error { got = cpus; return c.refuse },
		}
		p.place(cfg)
		if !slices.Equal(got, c.want) || !strings.Contains(log.String(), c.log) {
			t.Errorf("%s: CPUs %v, want %v; log %s", name, got, c.want, log.String())
		}
	}
}

func TestWantedBy(t *testing.T) {
	env := map[string]string{"CUDA_VISIBLE_DEVICES": "", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
	lookup := func(name string) (string, bool) { value, set := env[name]; return value, set }
	w := WantedBy(&config.WorkerConfig{Device: "cuda-3"}, lookup)
	if !w.CUDA || w.Number != 3 || w.Visible == nil || *w.Visible != "" || w.Order != "PCI_BUS_ID" {
		t.Errorf("%+v", w)
	}
	delete(env, "CUDA_VISIBLE_DEVICES")
	if w = WantedBy(&config.WorkerConfig{Device: "host-0"}, lookup); w.CUDA || w.Visible != nil {
		t.Errorf("%+v", w)
	}
}
