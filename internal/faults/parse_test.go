package faults

import (
	"testing"
	"time"

	"github.com/mooncake-sidecar/sidecar/worker"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]worker.Faults{
		"":                                  {},
		"copy_delay=50ms,ignore_cancel=1":   {CopyDelay: 50 * time.Millisecond, IgnoreCancel: true},
		" no_verify=1 , ignore_cancel=0":    {NoVerify: true},
		"ignore_cancel":                     {IgnoreCancel: true},
		"copy_delay=2s,copy_delay=1s":       {CopyDelay: time.Second},
		"copy_delay=1ms,,ignore_cancel=yes": {CopyDelay: time.Millisecond, IgnoreCancel: true},
	} {
		if got, err := Parse(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"copy_delay=soon", "copy_dely=1s"} {
		if _, err := Parse(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}
