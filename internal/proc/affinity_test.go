package proc

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSetAffinity: every thread has it, those that start later too.
func TestSetAffinity(t *testing.T) {
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	var all []int
	for cpu := range maxCPUs {
		if before.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	defer func() {
		if err := SetAffinity(all); err != nil {
			t.Error(err)
		}
	}()
	last := all[len(all)-1]
	if err := SetAffinity([]int{last}); err != nil {
		t.Fatal(err)
	}
	held := make(chan struct{})
	for range 3 * runtime.NumCPU() { // threads of their own
		started := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			close(started)
			<-held
		}()
		<-started
	}
	defer close(held)
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil || len(tasks) < 4 {
		t.Fatal(len(tasks), err)
	}
	for _, task := range tasks {
		status, err := os.ReadFile("/proc/self/task/" + task.Name() + "/status")
		if err != nil {
			continue // it ended
		}
		_, rest, _ := strings.Cut(string(status), "Cpus_allowed_list:")
		if fields := strings.Fields(rest); len(fields) == 0 || fields[0] != strconv.Itoa(last) {
			t.Errorf("thread %s may run on %.40q, want %d", task.Name(), rest, last)
		}
	}
}

func TestSetAffinityRefuses(t *testing.T) {
	for name, cpus := range map[string][]int{"below": {-1}, "above": {maxCPUs}, "none": {}} {
		if err := SetAffinity(cpus); err == nil || !strings.HasPrefix(err.Error(), "affinity: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
