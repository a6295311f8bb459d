package router

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
)

func formWith(t testing.TB, fields ...string) (content []byte, header http.Header) {
	t.Helper()
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	file, err := w.CreateFormFile("file", "speech.wav")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = file.Write(bytes.Repeat([]byte("\r\n--x model\r\n"), 10_000))
	for i := 0; i < len(fields); i += 2 {
		if err := w.WriteField(fields[i], fields[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	_ = w.Close()
	return form.Bytes(), http.Header{"Content-Type": {w.FormDataContentType()}}
}

// TestForms: a file is sent to an engine of the model that its form names.
func TestForms(t *testing.T) {
	content, header := formWith(t, "model", "other", "stream", "true")
	if model, streamed := formOf(header, content); model != "other" || !streamed {
		t.Errorf("%q, %v", model, streamed)
	}
	large, _ := formWith(t, "model", strings.Repeat("m", maxPartBytes+1))
	for name, c := range map[string][]byte{"nothing": nil, "half": content[:len(content)/2], "too long a name": large, "no form": []byte(`{"model":"other"}`)} {
		if model, streamed := formOf(header, c); model != "" || streamed {
			t.Errorf("%s: %.40q, %v", name, model, streamed)
		}
	}
	if model, _ := formOf(http.Header{"Content-Type": {"application/json"}}, content); model != "" {
		t.Errorf("%q", model)
	}

	s := newSiteOfTwoModels(t)
	for range 6 {
		if got := s.post("/v1/audio/transcriptions", string(content), "Content-Type", header.Get("Content-Type")); got.engine() != "b" {
			t.Errorf("%+v", got)
		}
	}
}

func FuzzForm(f *testing.F) {
	content, header := formWith(f, "model", "other")
	f.Add(content, header.Get("Content-Type"))
	f.Add([]byte("--x\r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n--x--"), "multipart/form-data; boundary=x")
	f.Fuzz(func(t *testing.T, content []byte, kind string) {
		if model, _ := formOf(http.Header{"Content-Type": {kind}}, content); len(model) > maxPartBytes {
			t.Errorf("%d bytes", len(model))
		}
	})
}
