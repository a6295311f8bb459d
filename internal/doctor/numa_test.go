package doctor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// nodes gives the machine NUMA nodes with cores and so many GiB that are free.
func nodes(w *world, gibs ...int) {
	for i, free := range gibs {
		dir := fmt.Sprintf("sys/devices/system/node/node%d/", i)
		w.files[dir+"cpulist"] = text(fmt.Sprintf("%d\n", i))
		w.files[dir+"meminfo"] = text(fmt.Sprintf("Node %d MemTotal: %d kB\nNode %d MemFree: %d kB\n", i, 32<<20, i, free<<20))
	}
}

func TestNUMAFindings(t *testing.T) {
	for name, c := range map[string]struct {
		provoke  func(*world)
		severity Severity
		says     string
	}{
		"one":      {func(w *world) { nodes(w, 30) }, OK, "equally far"},
		"two":      {func(w *world) { nodes(w, 30, 20) }, OK, "0 (room for 30GiB), 1 (room for 20GiB)"},
		"off":      {func(w *world) { nodes(w, 30, 20); w.c.NUMA = config.NUMAOff }, Info, "not divided"},
		"full":     {func(w *world) { nodes(w, 30, 4) }, Info, "node 1 has room for 4GiB"},
		"a GPU's":  {func(w *world) { nodes(w, 30, 20); w.files["sys/devices/system/node/node1/cpulist"] = text("\n") }, Info, "node 1 gets no part of the store"},
		"only one": {func(w *world) { nodes(w, 30, 20); w.files["proc/self/status"] = text("Mems_allowed_list:\t1\n") }, OK, "on NUMA node 1"},
		"nonsense": {func(w *world) { nodes(w, 30); w.files["sys/devices/system/node/online"] = text("x\n") }, Warning, "can't be read"},
	} {
		t.Run(name, func(t *testing.T) {
			s, settings, files, env := machine()
			c.provoke(&world{s, settings, files, env})
			found := numa(t.Context(), s, settings)
			for _, f := range found {
				if f.Severity == c.severity && strings.Contains(f.What, c.says) {
					return
				}
			}
			t.Errorf("not found: %s %q in %+v", c.severity, c.says, found)
		})
	}
}
