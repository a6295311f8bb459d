package command

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/mooncake-sidecar/sidecar/internal/config"
)

// newLog makes the log of a validated configuration. Its level can be changed.
func newLog(name string, common *config.Common, to io.Writer) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	level.Set(mustLevel(common))
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: readable}
	format := common.LogFormat
	if format == config.FormatAuto {
		format = formatFor(to, os.Getenv("JOURNAL_STREAM"))
	}
	var handler slog.Handler
	switch format {
	case config.FormatJSON:
		handler = slog.NewJSONHandler(to, options)
	case config.FormatJournal:
		handler = newJournalHandler(to, options)
	default:
		handler = slog.NewTextHandler(to, options)
	}
	return slog.New(handler).With("component", strings.TrimPrefix(name, "mooncake-")), level
}

// readable writes times as 15m0s in JSON too.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

func mustLevel(common *config.Common) slog.Level {
	level, err := common.Level()
	if err != nil {
		panic("BUG: a log level that was not validated: " + err.Error())
	}
	return level
}

// formatFor chooses the format that fits where the log goes: text for a person,
// the journal's for systemd, JSON for all else. journalStream is what systemd
// says of the stream that it reads: device and inode.
func formatFor(to io.Writer, journalStream string) string {
	file, ok := to.(*os.File)
	if !ok {
		return config.FormatJSON
	}
	if _, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS); err == nil {
		return config.FormatText
	}
	if info, err := file.Stat(); err == nil && journalStream != "" {
		if stat, ok := info.Sys().(*syscall.Stat_t); ok && journalStream == fmt.Sprintf("%d:%d", stat.Dev, stat.Ino) {
			return config.FormatJournal
		}
	}
	return config.FormatJSON
}

// journalHandler writes lines that journald files under their level: "<6>" in
// front is info. The journal has the time itself.
type journalHandler struct {
	slog.Handler // writes one line into the buffer
	*journal
}

// journal is what all handlers of a log share.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
	to  io.Writer
}

func newJournalHandler(to io.Writer, options *slog.HandlerOptions) slog.Handler {
	j := &journal{to: to}
	text := *options
	text.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return readable(groups, a)
	}
	return &journalHandler{Handler: slog.NewTextHandler(&j.buf, &text), journal: j}
}

// Handle implements slog.Handler.
func (h *journalHandler) Handle(ctx context.Context, r slog.Record) error {
	priority := "<7>"
	switch {
	case r.Level >= slog.LevelError:
		priority = "<3>"
	case r.Level >= slog.LevelWarn:
		priority = "<4>"
	case r.Level >= slog.LevelInfo:
		priority = "<6>"
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.buf.Reset()
	h.buf.WriteString(priority)
	if err := h.Handler.Handle(ctx, r); err != nil {
		return err
	}
	_, err := h.to.Write(h.buf.Bytes())
	return err
}

// WithAttrs implements slog.Handler.
func (h *journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &journalHandler{Handler: h.Handler.WithAttrs(attrs), journal: h.journal}
}

// WithGroup implements slog.Handler.
func (h *journalHandler) WithGroup(name string) slog.Handler {
	return &journalHandler{Handler: h.Handler.WithGroup(name), journal: h.journal}
}
