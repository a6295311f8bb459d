package fleet

import (
	"errors"
	"fmt"
	"net/url"
	"time"
)

// Role is what an engine does.
type Role string

// Roles.
const (
	Both    Role = "both"
	Prefill Role = "prefill"
	Decode  Role = "decode"
)

// Engine is where an engine is.
type Engine struct {
	// Name is the instance of the index.
	Name string
	// URL of its API, without a path: http://10.0.0.1:8000.
	URL string
	// Role; empty is Both.
	Role Role
	// Ranks is how many data-parallel ranks its API serves; 0 is 1. With more than one,
	// requests name theirs.
	Ranks int
	// APIKey is sent with our own questions, and with requests in place of whatever key they
	// have. Empty: no question has one, and requests have their own.
	APIKey string
}

// Options are how engines are watched.
type Options struct {
	// PollEvery is the interval of polls and PollTimeout the time that one may take.
	PollEvery, PollTimeout time.Duration
	// FailAfter polls in a row that failed, an engine is out; RecoverAfter that did well, it
	// is back.
	FailAfter, RecoverAfter int
	// GiveUpAfter an engine has been out so long, what it was still answering is ended.
	GiveUpAfter time.Duration
	// ModelsEvery is how often an engine is asked for its models.
	ModelsEvery time.Duration
}

// DefaultOptions are what the fields have that are 0.
func DefaultOptions() Options {
	return Options{
		PollEvery: 500 * time.Millisecond, PollTimeout: 3 * time.Second, FailAfter: 3, RecoverAfter: 2,
		GiveUpAfter: 30 * time.Second, ModelsEvery: 30 * time.Second,
	}
}

// ErrOptions: engines can't be watched like this.
var ErrOptions = errors.New("fleet options")

func (o *Options) setDefaults() {
	d := DefaultOptions()
	set(&o.PollEvery, d.PollEvery)
	set(&o.PollTimeout, d.PollTimeout)
	set(&o.FailAfter, d.FailAfter)
	set(&o.RecoverAfter, d.RecoverAfter)
	set(&o.GiveUpAfter, d.GiveUpAfter)
	set(&o.ModelsEvery, d.ModelsEvery)
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// maxRanks of an engine.
const maxRanks = 1024

// Check returns all faults of engines and options.
func Check(engines []Engine, o *Options) error {
	var faults []error
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: "+format, append([]any{ErrOptions}, args...)...))
	}
	names := map[string]bool{}
	for i := range engines {
		e := &engines[i]
		u, err := url.Parse(e.URL)
		switch {
		case e.Name == "":
			fault("engine %d has no name", i)
		case names[e.Name]:
			fault("two engines are named %q", e.Name)
		}
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.Path != "" && u.Path != "/" || u.RawQuery != "" {
			fault("engine %q has the url %q; want http://host:port", e.Name, e.URL)
		}
		if e.Role != "" && e.Role != Both && e.Role != Prefill && e.Role != Decode {
			fault("engine %q has the role %q; want %s, %s or %s", e.Name, e.Role, Both, Prefill, Decode)
		}
		if e.Ranks < 0 || e.Ranks > maxRanks {
			fault("engine %q has %d ranks; want 0 to %d", e.Name, e.Ranks, maxRanks)
		}
		names[e.Name] = true
	}
	if o.PollEvery < 0 || o.PollTimeout < 0 || o.FailAfter < 0 || o.RecoverAfter < 0 || o.GiveUpAfter < 0 || o.ModelsEvery < 0 {
		fault("%+v; want no negative values", *o)
	}
	return errors.Join(faults...)
}
