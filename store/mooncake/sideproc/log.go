package sideproc

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"
)

const (
	// maxLine is where a line of the process is cut.
	maxLine = 1024
	// linesPerPeriod bounds what is logged; what is beyond is counted.
	linesPerPeriod = 50
	logPeriod      = 10 * time.Second
)

// logLines logs what the process prints.
type logLines struct {
	log *slog.Logger

	mu       sync.Mutex
	lastSaid string // the last line that was more than information

	// The reader's alone.
	begun   time.Time
	lines   int
	dropped int
}

func newLogLines(log *slog.Logger) *logLines { return &logLines{log: log} }

// read logs lines until the end of the stream.
func (l *logLines) read(from io.Reader) {
	r := bufio.NewReaderSize(from, maxLine)
	for {
		line, err := r.ReadSlice('\n')
		if len(line) > 0 {
			l.line(textOf(line))
		}
		for errors.Is(err, bufio.ErrBufferFull) { // the rest of a long line
			_, err = r.ReadSlice('\n')
		}
		if err != nil {
			l.flush()
			return
		}
	}
}

// line logs one line by the severity that glog gives it.
func (l *logLines) line(text string) {
	text = strings.TrimSpace(text)
	if text == "" {
		return
	}
	level := severity(text)
	if level > slog.LevelDebug {
		l.mu.Lock()
		l.lastSaid = text
		l.mu.Unlock()
	}
	if now := time.Now(); now.Sub(l.begun) >= logPeriod {
		l.flush()
		l.begun = now
	}
	if l.lines++; l.lines > linesPerPeriod {
		l.dropped++
		return
	}
	l.at(level)("Mooncake client", "said", text)
}

// at returns the method that logs at a level.
func (l *logLines) at(level slog.Level) func(msg string, args ...any) {
	switch {
	case level >= slog.LevelError:
		return l.log.Error
	case level >= slog.LevelWarn:
		return l.log.Warn
	case level >= slog.LevelInfo:
		return l.log.Info
	}
	return l.log.Debug
}

func (l *logLines) flush() {
	if l.dropped > 0 {
		l.log.Warn("Mooncake client said more than is logged", "lines", l.dropped)
	}
	l.lines, l.dropped = 0, 0
}

// severity is the level of a line: glog's begin with a letter and the date.
func severity(text string) slog.Level {
	if strings.Contains(text, "before InitGoogleLogging()") {
		return slog.LevelDebug // always the first
	}
	if len(text) > 5 && text[1] >= '0' && text[1] <= '9' && text[2] >= '0' && text[2] <= '9' {
		switch text[0] {
		case 'I':
			return slog.LevelDebug
		case 'W':
			return slog.LevelInfo
		case 'E':
			return slog.LevelWarn
		case 'F':
			return slog.LevelError
		}
	}
	return slog.LevelInfo
}

// last returns the last line that was more than information.
func (l *logLines) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lastSaid
}
