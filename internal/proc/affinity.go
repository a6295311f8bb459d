package proc

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// maxCPUs is what a unix.CPUSet has room for.
const maxCPUs = len(unix.CPUSet{}) * 64

// taskPasses bounds how often the threads are gone through.
const taskPasses = 100

// SetAffinity keeps all threads of the process to those CPUs, which must be
// numbers that the process may use. Threads that start later have it from the
// thread that starts them.
func SetAffinity(cpus []int) error {
	var set unix.CPUSet
	for _, cpu := range cpus {
		if cpu < 0 || cpu >= maxCPUs {
			return fmt.Errorf("affinity: CPU %d; at most %d is known here", cpu, maxCPUs-1)
		}
		set.Set(cpu)
	}
	// A thread that was not reached may start others meanwhile: until a pass finds
	// none that is new.
	done := map[int]bool{}
	for range taskPasses {
		news, err := setNewTasks(&set, done)
		if err != nil || !news {
			return err
		}
	}
	return errors.New("affinity: the process starts threads faster than they can be placed")
}

// setNewTasks sets the affinity of the threads that are not done yet.
func setNewTasks(set *unix.CPUSet, done map[int]bool) (news bool, err error) {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return false, fmt.Errorf("affinity: %w", err)
	}
	for _, entry := range entries {
		tid, err := strconv.Atoi(entry.Name())
		if err != nil || done[tid] {
			continue
		}
		if err := unix.SchedSetaffinity(tid, set); err != nil && !errors.Is(err, unix.ESRCH) { // it ended
			return news, fmt.Errorf("affinity: %w", err)
		}
		done[tid], news = true, true
	}
	return news, nil
}
