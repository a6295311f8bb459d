package daemon

import (
	"context"
	"log/slog"
	"os"
	"sync"

	"github.com/mooncake-sidecar/sidecar/internal/admin"
	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// Control is how a running daemon is told something by whoever started it, or by
// an operator. The zero value is a daemon that can't be told anything.
type Control struct {
	// Level is the level of the daemon's log. Nil: it is fixed.
	Level *slog.LevelVar
	// Reload reads the configuration again and applies what can change at run
	// time. It may be called from several goroutines. Nil: nothing can.
	Reload func() admin.Reloaded
	// Hangups delivers SIGHUP, which asks for Reload.
	Hangups <-chan os.Signal
	// Settings returns the configuration in force. It may be called from several
	// goroutines. Nil: it is not known.
	Settings func() []config.Setting
}

// level and setLevel are for the administration's socket; nil without a level.
func (c *Control) level() func() string {
	if c.Level == nil {
		return nil
	}
	return func() string { return levelName(c.Level.Level()) }
}

func (c *Control) setLevel(log *slog.Logger) func(string) error {
	if c.Level == nil {
		return nil
	}
	return func(text string) error {
		level, err := config.ParseLevel(text)
		if err != nil {
			return err
		}
		c.Level.Set(level)
		log.Info("log level set", "to", text)
		return nil
	}
}

func levelName(l slog.Level) string {
	switch {
	case l < slog.LevelInfo:
		return "debug"
	case l < slog.LevelWarn:
		return "info"
	case l < slog.LevelError:
		return "warn"
	}
	return "error"
}

// reload reads the configuration again and logs what came of it.
func (c *Control) reload(log *slog.Logger) admin.Reloaded {
	report := c.Reload()
	switch {
	case report.Error != "":
		log.Error("the configuration is as it was: it could not be read again", "error", report.Error)
	case len(report.Applied)+len(report.Ignored) == 0:
		log.Info("configuration read again, nothing has changed")
	default:
		log.Info("configuration read again", "applied", report.Applied)
	}
	if len(report.Ignored) > 0 {
		log.Warn("these settings take effect at the next start", "ignored", report.Ignored)
	}
	return report
}

// reloads starts to serve Hangups until ctx ends. around wraps each reload, for
// a service manager that wants to know.
func (c *Control) reloads(ctx context.Context, background *sync.WaitGroup, around func(reload func()), log *slog.Logger) {
	if c.Hangups == nil || c.Reload == nil {
		return
	}
	background.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-c.Hangups:
				around(func() { c.reload(log) })
			}
		}
	})
}
