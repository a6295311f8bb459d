package client

import (
	"bytes"
	"testing"
)

func FuzzAnswer(f *testing.F) {
	f.Add([]byte("data: {\"choices\":[{\"index\":0,\"text\":\"x\",\"finish_reason\":null}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\ndata: [DONE]\n\n"))
	f.Add([]byte("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":1}}}\n\n"))
	f.Add([]byte(": ping\r\n\r\ndata: {\"error\": {\"message\": \"x\"}}\n\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		told := 0
		answer, err := readAnswer(bytes.NewReader(stream), 10, func(n int) {
			if n < 1 {
				t.Fatalf("an event of %d tokens", n)
			}
			told += n
		})
		if answer.OutputTokens < 0 || answer.CachedTokens < Unknown || answer.PromptTokens < Unknown || told < 0 {
			t.Fatalf("%+v, %v", answer, err)
		}
		if err == nil && !bytes.Contains(stream, []byte("[DONE]")) {
			t.Fatal("an answer without its mark")
		}
	})
}

func FuzzPages(f *testing.F) {
	f.Add([]byte(`{"data": [{"id": "m", "max_model_len": 4096}]}`))
	f.Add([]byte("vllm:cache_config_info{block_size=\"16\",engine=\"0\"} 1.0\nvllm:cache_config_info{block_size=\"32\"} 1\n"))
	f.Fuzz(func(t *testing.T, page []byte) {
		if n, err := readBlockTokens(bytes.NewReader(page)); err == nil && (n < 1 || n > 999_999) {
			t.Fatalf("a block of %d tokens", n)
		}
		if models, err := readModels(bytes.NewReader(page)); err == nil {
			for _, m := range models {
				if m.MaxTokens < 0 {
					t.Fatalf("%+v", m)
				}
			}
		}
	})
}
