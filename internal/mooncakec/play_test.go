//go:build cgo && linux && (amd64 || arm64)

package mooncakec_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/internal/mooncakec"
	"github.com/mooncake-sidecar/sidecar/store/mooncake/cluster"
)

// thread is one of this process's, as the kernel tells it.
type thread struct {
	name    string
	blocked uint64 // its signals, bit number-1
	call    string // the number of the system call that it is in, or "running"
}

func (t *thread) blocks(s syscall.Signal) bool { return t.blocked&(1<<(s-1)) != 0 }

func threads() (list []thread, err error) {
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		return nil, err
	}
	for _, task := range tasks {
		status, err := os.ReadFile(filepath.Join(task, "status"))
		if err != nil {
			continue // it has ended
		}
		var th thread
		for line := range strings.Lines(string(status)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
			switch name {
			case "Name":
				th.name = value
			case "SigBlk":
				if th.blocked, err = strconv.ParseUint(value, 16, 64); err != nil {
					return nil, err
				}
			}
		}
		if call, err := os.ReadFile(filepath.Join(task, "syscall")); err == nil {
			th.call, _, _ = strings.Cut(string(call), " ")
		}
		list = append(list, th)
	}
	return list, nil
}

// waits tells whether a thread waits for signals, and takes them from everybody.
func waits(list []thread) bool {
	number := strconv.Itoa(unix.SYS_RT_SIGTIMEDWAIT)
	for i := range list {
		if list[i].call == number {
			return true
		}
	}
	return false
}

// play sets a client of a library up in a process of its own, and says what became of
// the process's signals.
func play(library string) string {
	memory, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	if err != nil {
		return err.Error()
	}
	e := mooncakec.New(mooncakec.Config{
		Library: library, Memory: memory, Log: slog.New(slog.DiscardHandler), Limits: mooncakec.Limits{Start: time.Minute},
		Cluster: cluster.Config{MasterServerAddress: "127.0.0.1:1", Protocol: "tcp", LocalHostname: "127.0.0.1"},
	})
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	for {
		changed := e.Changed()
		if e.Health().Ready {
			break
		}
		<-changed
	}
	said := describeThreads()
	end()
	<-ended
	return said
}

// describeThreads says whether a thread takes the process's signals, how many of the
// library have them blocked, and how many others. Threads that begin are given time.
func describeThreads() string {
	waiting, library, ours := false, 0, 0
	deadline := time.Now().Add(time.Minute)
	// A thread of ours that begins blocks them for a moment, and so does one that will wait.
	for looks := 0; looks < 200 || ours > 0 && time.Now().Before(deadline); looks++ {
		list, err := threads()
		if err != nil {
			return err.Error()
		}
		waiting, library, ours = waits(list), 0, 0
		for i := range list {
			th := &list[i]
			switch {
			case th.name == "double" && th.blocks(syscall.SIGTERM) && th.blocks(syscall.SIGHUP) && !th.blocks(syscall.SIGSEGV):
				library++
			case th.name != "double" && th.blocks(syscall.SIGTERM) && !waits(list[i:i+1]):
				ours++
			}
		}
		if waiting && library > 0 && ours == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Sprintf("waits=%t library=%d ours=%d", waiting, library, ours)
}

// TestSignals: the library leaves the process's signals alone, and its threads get
// none. The same look finds the thread of a library that does not ask.
func TestSignals(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for define, want := range map[string]string{"SIGNALS_IF_ALONE": "waits=false library=1 ours=0", "SIGNALS_ALWAYS": "waits=true library=1 ours=0"} {
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env = append(os.Environ(), roleVariable+"="+double(t, define))
		cmd.Stderr = os.Stderr
		if out, err := cmd.Output(); err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%s: %q, %v, want %q", define, out, err, want)
		}
	}
}

// TestSymbolIsMissing: a program that does not export Py_IsInitialized, whatever
// linked it, loads no library.
func TestSymbolIsMissing(t *testing.T) {
	source := filepath.Join(t.TempDir(), "main.c")
	program := `#include <stdio.h>
#include "clib.h"
#ifdef EXPORTED
int Py_IsInitialized(void) { return 0; }
#endif
int main(int argc, char **argv) {
  mcl_table table;
  char why[256] = "loaded";
  int code = argc == 2 ? mcl_load(argv[1], &table, why, sizeof why) : -1;
  printf("%d %s", code, why);
  return 0;
}
`
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	library := double(t)
	for want, arguments := range map[string][]string{
		"1 this program does not export Py_IsInitialized, so " + library: nil,
		"0 loaded": {"-DEXPORTED", "-rdynamic"},
	} {
		main := compile(t, "main", append(arguments, "-I.", source, "clib.c", "-ldl")...)
		if out, err := exec.CommandContext(t.Context(), main, library).Output(); err != nil || !strings.HasPrefix(string(out), want) {
			t.Errorf("%q, %v, want %q", out, err, want)
		}
	}
}
