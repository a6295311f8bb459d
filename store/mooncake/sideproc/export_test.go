package sideproc

import (
	"context"

	"github.com/mooncake-sidecar/sidecar/store/mooncake"
)

// Frames, for tests that play the process.
var (
	ReadFrame   = readFrame
	AnswersOf   = answersOf
	AppendFrame = func(call uint32, kind byte, body []byte) []byte {
		return endFrame(append(beginFrame(nil, call, kind), body...))
	}
	Severity = severity
)

// Frame is a frame.
type Frame = frame

// Call, Kind and Body are a frame's parts.
func (f Frame) Call() uint32 { return f.call }

// Kind is the frame's kind.
func (f Frame) Kind() byte { return f.kind }

// Body is what is behind the head.
func (f Frame) Body() []byte { return f.body }

// NewFrame makes a frame.
func NewFrame(call uint32, kind byte, body []byte) Frame { return frame{call, kind, body} }

// Kinds of frames.
const (
	KindExist       = kindExist
	KindPut         = kindPut
	KindGet         = kindGet
	KindRemove      = kindRemove
	KindRemoveRegex = kindRemoveRegex
	KindPing        = kindPing
	KindAnswers     = kindAnswers
	KindRefused     = kindRefused
	KindFailed      = kindFailed
	KindHello       = kindHello
	KindSetup       = kindSetup
	KindReady       = kindReady
)

// Unchecked makes a get without looking at the objects.
func (e *Engine) Unchecked(ctx context.Context, objects []mooncake.Object) ([]mooncake.Answer, error) {
	return e.call(ctx, "get", laneGet, kindGet, len(objects), func(dst []byte) []byte { return appendObjects(dst, objects) })
}

// Raw makes a question with any body.
func (e *Engine) Raw(ctx context.Context, kind byte, n int, body []byte) ([]mooncake.Answer, error) {
	return e.call(ctx, "raw", laneExist, kind, n, func(dst []byte) []byte { return append(dst, body...) })
}
