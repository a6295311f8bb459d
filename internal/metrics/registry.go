package metrics

import (
	"net/http"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Prefix begins the name of every metric that is ours.
const Prefix = "mooncake_sidecar_"

const (
	// maxScrapes bounds the scrapes at one time; more are answered 503.
	maxScrapes = 4
	// scrapeTimeout bounds one.
	scrapeTimeout = 10 * time.Second
)

// Registry holds one daemon's metrics.
type Registry struct{ inner *prometheus.Registry }

// NewRegistry returns a registry with what every daemon has: its build, the Go
// runtime's and the process's metrics.
func NewRegistry(program, version string) *Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: Prefix + "build_info", Help: "What was built; the value is 1.",
			ConstLabels: prometheus.Labels{"program": program, "version": version, "revision": Revision(), "goversion": runtime.Version()},
		}, func() float64 { return 1 }),
	)
	return &Registry{inner: r}
}

// Revision is the commit that the program was built from, as far as it is known.
func Revision() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}

// Handler answers scrapes.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r.inner, promhttp.HandlerOpts{
		// What can be collected is shown; the rest is for the error counter.
		ErrorHandling: promhttp.ContinueOnError, Registry: r.inner,
		MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout, EnableOpenMetrics: true,
	})
}
