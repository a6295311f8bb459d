package connector

import "fmt"

// Receive reads a message that must be a *T; a refusal is an error with its code
// and text.
func Receive[T any](frames *FrameReader) (*T, error) {
	frame, err := frames.Next()
	if err != nil {
		return nil, err
	}
	msg, err := Decode(frame)
	if err != nil {
		return nil, err
	}
	switch msg := msg.(type) {
	case *T:
		return msg, nil
	case *Error:
		return nil, fmt.Errorf("refused (%s): %s", msg.Code, msg.Message)
	}
	return nil, fmt.Errorf("got a %T, want a %T", msg, new(T))
}
