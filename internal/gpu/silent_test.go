//go:build cgo && linux && (amd64 || arm64) && !nonvml

package gpu

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// A driver that hangs costs the limit, and one thread however often it is asked;
// when it comes back, so do its answers.
func TestADriverThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var inits atomic.Int64
		driver := fake(func(library *mock.Interface, _ *mock.Device) {
			library.InitFunc = func() nvml.Return {
				inits.Add(1)
				<-release
				return nvml.SUCCESS
			}
		})
		for range 3 {
			asked := time.Now()
			if gpus, err := driver.GPUs(); !errors.Is(err, ErrSilent) || gpus != nil {
				t.Errorf("%+v, %v, want ErrSilent", gpus, err)
			}
			if took := time.Since(asked); took != answerLimit { // of the test's clock
				t.Errorf("it took %v, want %v", took, answerLimit)
			}
		}
		if n := inits.Load(); n != 1 {
			t.Errorf("%d threads hang, want 1", n)
		}
		close(release)
		synctest.Wait()
		if gpus, err := driver.GPUs(); err != nil || len(gpus) != 1 {
			t.Errorf("%+v, %v", gpus, err)
		}
	})
}
