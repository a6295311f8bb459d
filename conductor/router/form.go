package router

import (
	"bytes"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
)

// Limits of what is looked at in a form.
const (
	maxParts     = 64
	maxPartBytes = 4 << 10
)

// formOf finds the fields of a form, as those who send a file have one, that say where it is
// to go. What is no form, or can't be read, has none: the engine will say so.
func formOf(h http.Header, content []byte) (model string, streamed bool) {
	kind, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" {
		return "", false
	}
	form := multipart.NewReader(bytes.NewReader(content), params["boundary"])
	for range maxParts {
		part, err := form.NextRawPart()
		if err != nil {
			break
		}
		name := part.FormName()
		if name != "model" && name != "stream" {
			continue
		}
		value, err := io.ReadAll(io.LimitReader(part, maxPartBytes+1))
		switch {
		case err != nil || len(value) > maxPartBytes:
		case name == "model":
			model = string(value)
		default:
			streamed = string(value) == "true" || string(value) == "True" || string(value) == "1"
		}
	}
	return model, streamed
}
