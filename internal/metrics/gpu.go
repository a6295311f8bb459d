package metrics

import "time"

// GPU is what a worker knows of its GPU.
type GPU struct {
	Flows                       []GPUFlow
	MappedBytes                 int64
	StoreBytes, RegisteredBytes int64
	RefusedBytes, BufferedBytes int64
	Waits                       int64
	Waited                      time.Duration
	Fenced, Refused, Failed     int64
	Lost                        bool
}

// GPUFlow is what is copied in a direction and in a way.
type GPUFlow struct {
	Load                    bool
	Way                     string
	Launches, Bytes, Caches int64
}

// AddGPU adds the metrics of a worker's GPU. stats is called by each scrape.
func (r *Registry) AddGPU(stats func() GPU) {
	const way = "way"
	var (
		bytes      = counter("gpu_copied_bytes_total", "Bytes copied between the engine's GPU memory and the store, by what copied them.", operation, way)
		launches   = counter("gpu_launches_total", "Portions of work that the GPU was given for it.", operation, way)
		caches     = gauge("gpu_kv_caches", "KV caches of engine ranks that are mapped, by the way that was chosen for their copies.", operation, way)
		mapped     = gauge("gpu_mapped_bytes", "Engines' GPU memory that is mapped. It is not free while it is.")
		store      = gauge("gpu_store_bytes", "The store's memory that the GPU is to reach directly.")
		registered = gauge("gpu_registered_bytes", "What it reaches of that. It grows while an engine is there, and is 0 without one.")
		refused    = gauge("gpu_refused_bytes", "What it can't reach, because the driver would not take it. Copies of that go by way of a buffer.")
		buffered   = counter("gpu_buffered_bytes_total", "Bytes copied by way of that buffer, at a fraction of the speed.")
		waits      = counter("gpu_event_waits_total", "Portions of jobs that found the engine's step still under way.")
		waited     = counter("gpu_event_wait_seconds_total", "Time that they waited for it.")
		fenced     = counter("gpu_fenced_total", "Portions of jobs that were given up with work at the GPU, whose end was awaited before the engine was told.")
		refusals   = counter("gpu_registrations_refused_total", "Registrations of engines' GPU memory that failed.")
		failures   = counter("gpu_copy_failures_total", "Portions of jobs whose copy failed.")
		lost       = gauge("gpu_lost", "1 when this process can't use its GPU any more; it ends then.")
	)
	r.inner.MustRegister(&source{
		families: []*family{
			bytes, launches, caches, mapped, store, registered, refused, buffered, waits, waited, fenced, refusals, failures, lost,
		},
		collect: func(out sink) {
			s := stats()
			for _, f := range s.Flows {
				label := operationStore
				if f.Load {
					label = operationLoad
				}
				out.put(bytes, float64(f.Bytes), label, f.Way)
				out.put(launches, float64(f.Launches), label, f.Way)
				out.put(caches, float64(f.Caches), label, f.Way)
			}
			out.put(mapped, float64(s.MappedBytes))
			out.put(store, float64(s.StoreBytes))
			out.put(registered, float64(s.RegisteredBytes))
			out.put(refused, float64(s.RefusedBytes))
			out.put(buffered, float64(s.BufferedBytes))
			out.put(waits, float64(s.Waits))
			out.put(waited, s.Waited.Seconds())
			out.put(fenced, float64(s.Fenced))
			out.put(refusals, float64(s.Refused))
			out.put(failures, float64(s.Failed))
			out.flag(lost, s.Lost)
		},
	})
}
