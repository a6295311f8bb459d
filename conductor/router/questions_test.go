package router

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// What requests say besides, by what comes of it. tests/conductor/engines compares with what
// an engine makes of each field that it knows.
type fieldsOf struct {
	path, base string
	// matter: of each field values that lead to different token ids, and to others than
	// without the field.
	matter map[string][]string
	// idle: fields on which no token id depends.
	idle map[string]string
}

func requestFields() []fieldsOf {
	idle := map[string]string{
		"frequency_penalty": "0.5", "logit_bias": `{"5":1}`, "max_tokens": "7", "n": "2", "presence_penalty": "0.1", "seed": "3", "stop": `["x"]`, "stream": "true",
		"stream_options": `{"include_usage":true}`, "temperature": "0.3", "top_p": "0.9", "user": `"u"`, "top_k": "4", "min_p": "0.1", "repetition_penalty": "1.1",
		"stop_token_ids": "[2]", "ignore_eos": "true", "min_tokens": "1", "skip_special_tokens": "false", "prompt_logprobs": "1", "allowed_token_ids": "[5]",
		"response_format": `{"type":"json_object"}`, "priority": "1", "request_id": `"r"`, "return_token_ids": "true", "cache_salt": `"s"`, "vllm_xargs": `{"a":1}`,
		"kv_transfer_params": `{"skip_save":true}`, "made_up": `"x"`,
	}
	chat := map[string]string{"max_completion_tokens": "5", "tool_choice": `"none"`, "parallel_tool_calls": "false", "include_reasoning": "false", "top_logprobs": "2"}
	for name, value := range idle {
		chat[name] = value
	}
	return []fieldsOf{
		{pathCompletions, `{"prompt":"p"}`, map[string][]string{
			"model": {`"m"`, `"adapter"`}, "prompt": {`"q"`, `" p"`, `"p "`, `"P"`, `""`, `"p\u0000"`}, "add_special_tokens": {"false", "true"},
		}, idle},
		{pathChat, `{"messages":[{"role":"user","content":"p"}]}`, map[string][]string{
			"model": {`"m"`, `"adapter"`},
			"messages": {
				`[]`, `[{"role":"user","content":"q"}]`, `[{"role":"system","content":"p"}]`, `[{"role":"user","content":"p"},{"role":"assistant","content":"p"}]`,
				`[{"role":"user","content":[{"type":"text","text":"p"}]}]`, `[{"role":"user","content":"p","name":"n"}]`, `[{"role":"assistant","content":"p","reasoning_content":"r"}]`,
				`[{"role":"assistant","content":"p","reasoning_content":"s"}]`, `[{"role":"assistant","content":"p"}]`, `[{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}]`,
			},
			"tools":                  {`[{"type":"function","function":{"name":"f"}}]`, `[{"type":"function","function":{"name":"g"}}]`},
			"add_generation_prompt":  {"false", "true"},
			"continue_final_message": {"true", "false"},
			"add_special_tokens":     {"true", "false"},
			"chat_template":          {`"a"`, `"b"`},
			"chat_template_kwargs":   {`{"enable_thinking":true}`, `{"enable_thinking":false}`, `{"documents":[{"text":"kwargs"}]}`, `{}`},
			"documents":              {`[{"text":"x"}]`, `[{"text":"y"}]`, `[]`},
			"reasoning_effort":       {`"low"`, `"high"`, `"none"`},
			"media_io_kwargs":        {`{"video":{"num_frames":1}}`, `{"video":{"num_frames":2}}`},
			"mm_processor_kwargs":    {`{"a":1}`, `{"a":2}`},
		}, chat},
	}
}

func questionIn(t rapid.TB, path, text string) string {
	t.Helper()
	b, err := parseBody([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	question, err := questionOf(path, b)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return question
}

// Two requests share a question, and with it a remembered answer, if and only if they are
// equal in all that token ids depend on: whatever else is in them, and in whatever order.
func TestQuestionsAreSharedByEqualsOnly(t *testing.T) {
	for _, of := range requestFields() {
		base := questionIn(t, of.path, of.base)
		whose := map[string]string{base: "nothing"}
		for name, values := range of.matter {
			for _, value := range values {
				b, _ := parseBody([]byte(of.base))
				changed := string(b.with(field{name, []byte(value)}))
				q := questionIn(t, of.path, changed)
				if other, shared := whose[q]; shared {
					t.Errorf("%s: %s %s shares its answer with %s", of.path, name, value, other)
				}
				whose[q] = name + " " + value
			}
		}
		for name, value := range of.idle {
			b, _ := parseBody([]byte(of.base))
			if questionIn(t, of.path, string(b.with(field{name, []byte(value)}))) != base {
				t.Errorf("%s: with %s it is asked once more", of.path, name)
			}
		}
	}
}

// The same for whole requests, with many fields each: one that differs in what does not matter
// and in the order of its fields shares the question, one that differs in a field that does
// matter does not.
func TestQuestionsOfWholeRequests(t *testing.T) {
	all := requestFields()
	differ := 0
	rapid.Check(t, func(rt *rapid.T) {
		of := all[rapid.IntRange(0, len(all)-1).Draw(rt, "kind")]
		b, _ := parseBody([]byte(of.base))
		value := func(name string, least int) []byte {
			if at := rapid.IntRange(least, len(of.matter[name])-1).Draw(rt, name); at >= 0 {
				return []byte(of.matter[name][at])
			}
			return b.get(name)
		}
		var said []field
		for _, name := range sorted(of.matter) {
			said = append(said, field{name, value(name, -1)})
		}
		one := b.with(said...)
		asked := questionIn(rt, of.path, string(one))
		idle := slices.Clone(said)
		for _, name := range sorted(of.idle) {
			if rapid.Bool().Draw(rt, name) {
				idle = append(idle, field{name, []byte(of.idle[name])})
			}
		}
		again := shuffled(rt, string(b.with(idle...)))
		if got := questionIn(rt, of.path, again); got != asked {
			rt.Fatalf("%s\n%s\nare asked as\n%s\n%s", one, again, asked, got)
		}
		at := rapid.IntRange(0, len(said)-1).Draw(rt, "which")
		idle[at].value = value(said[at].name, 0)
		other := shuffled(rt, string(b.with(idle...)))
		before, _ := parseBody(one)
		after, _ := parseBody(b.with(idle[:len(said)]...))
		if canonical(before) == canonical(after) {
			return
		}
		differ++
		if got := questionIn(rt, of.path, other); got == asked {
			rt.Fatalf("%s\n%s\nare both asked as\n%s", one, other, asked)
		}
	})
	if differ == 0 { // with -short there are few
		t.Error("no pairs differed")
	}
}

// canonical is what a request says of its token ids: all its fields, of which some are put
// into others.
func canonical(b *body) string {
	kwargs, err := templateKwargs(b)
	if err != nil {
		return err.Error()
	}
	own := &body{}
	if kwargs != nil {
		own, _ = parseBody(kwargs)
	}
	inOrder := func(b *body) []byte {
		fields := slices.Clone(b.fields)
		slices.SortFunc(fields, func(a, b field) int { return strings.Compare(a.name, b.name) })
		return (&body{fields: fields}).with()
	}
	changes := []field{{"documents", nil}, {"reasoning_effort", nil}, {"chat_template_kwargs", nil}}
	if kwargs != nil {
		changes[2].value = inOrder(own)
	}
	whole, err := parseBody(b.with(changes...))
	if err != nil {
		return err.Error()
	}
	return string(inOrder(whole))
}

// shuffled is an object with its fields in another order.
func shuffled(rt *rapid.T, text string) string {
	b, _ := parseBody([]byte(text))
	return string((&body{}).with(rapid.Permutation(b.fields).Draw(rt, "order")...))
}

func sorted[V any](of map[string]V) []string {
	var names []string
	for name := range of {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Text that speaks of images has none, and may be computed elsewhere; what is not read may.
func TestMedia(t *testing.T) {
	for messages, want := range map[string]bool{
		`[{"role":"user","content":"\"image\", \"file\": \"input_ids\""}]`:                                      false,
		`[{"role":"user","content":"image"},{"role":"tool","content":[{"type":"text","text":"file"},"audio"]}]`: false,
		`[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"file"}}]}]`:                     false,
		`[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"u"}}]}]`: true,
		`[{"role":"user","content":[{"image_url":"u"}]}]`:                                                       true,
		`[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"d"}}]}]`:                       true,
		`[{"role":"user","content":[{"type":"input_text","text":"d"}]}]`:                                        false,
		`[{"role":"user","content":"file"`:                                                                      true,
		`{"role":"image"}`:                                                                                      true,
		`["image"]`:                                                                                             true,
		`[]`:                                                                                                    false,
	} {
		if got := hasMedia([]byte(messages)); got != want {
			t.Errorf("%s: %t", messages, got)
		}
	}
}

// FuzzWithReasoning: of a list of messages only the old name of what was thought changes, as
// in chats; what is no such list stays as it is, and so does what has a name twice, or one
// that is written in another way.
func FuzzWithReasoning(f *testing.F) {
	f.Add([]byte(`[{"role":"assistant","reasoning_content":"r"},{"reasoning_content":"r","reasoning":"s"},{"reasoning_content":null}]`))
	f.Add([]byte(`[ {"reasoning_content" : {"a":[1,"]"]}, "reasoning":null} , 5, [], "reasoning_content" ]`))
	f.Add([]byte(`{"reasoning_content":1}`))
	f.Add([]byte(`[{"reasoning_content":1,"reasoning_content":2}]`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		raw = bytes.TrimSpace(raw)
		_ = hasMedia(raw)
		out := withReasoning(raw)
		var want, got any
		if json.Unmarshal(raw, &want) != nil {
			return
		}
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%q became %q: %v", raw, out, err)
		}
		if bytes.Equal(raw, out) && (bytes.Contains(raw, []byte(`\u`)) || !bytes.Contains(raw, []byte("reasoning_content")) || raw[0] != '[') {
			return
		}
		messages, _ := want.([]any)
		for _, m := range messages {
			message, _ := m.(map[string]any)
			thought, there := message["reasoning_content"]
			if delete(message, "reasoning_content"); there && thought != nil && message["reasoning"] == nil {
				message["reasoning"] = thought
			}
		}
		if !reflect.DeepEqual(got, want) && !bytes.Equal(raw, out) {
			t.Fatalf("%q became %q", raw, out)
		}
		if bytes.Equal(raw, out) && !reflect.DeepEqual(got, want) && !oddMessages(raw) {
			t.Fatalf("%q was left as it is", raw)
		}
	})
}

// oddMessages tells whether one of a list's messages is an object that is not read.
func oddMessages(raw []byte) bool {
	var messages []json.RawMessage
	_ = json.Unmarshal(raw, &messages)
	return slices.ContainsFunc(messages, func(m json.RawMessage) bool {
		_, err := parseBody(m)
		return err != nil && m[0] == '{'
	})
}

// Where an engine takes a part of a prompt it is not said that its token ids are known.
func TestTruncatedPrompts(t *testing.T) {
	s := newSite(t, 1, func(o *siteOptions) { o.config.SendTokens = true })
	for _, c := range []struct {
		path, content string
		known         bool
	}{
		{pathCompletions, completion("abc", `"truncate_prompt_tokens":2`), false},
		{pathCompletions, completion("abc", `"truncate_prompt_tokens":3`), true},
		{pathCompletions, completion("abc", `"truncate_prompt_tokens":null`), true},
		{pathCompletions, completion("abc", `"truncate_prompt_tokens":-1`), true},
		{pathCompletions, `{"model":"adapter","prompt":"abc","truncate_prompt_tokens":-1}`, false}, // what it takes is not told
		{pathCompletions, `{"model":"m","prompt":[1,2,3],"truncate_prompt_tokens":2}`, false},
		{pathCompletions, `{"model":"m","prompt":[1,2,3],"truncate_prompt_tokens":4}`, true},
		{pathChat, `{"model":"m","messages":[{"role":"user","content":"abc"}],"truncate_prompt_tokens":9}`, false},
		{pathChat, `{"model":"m","messages":[{"role":"user","content":"abc"}],"truncate_prompt_tokens":90}`, true},
	} {
		if got := s.post(c.path, c.content); got.status != http.StatusOK {
			t.Fatalf("%+v", got)
		}
		d := s.decision()
		if d.Known != c.known || (d.Unknown == "") != c.known {
			t.Errorf("%s: known %t, %q", c.content, d.Known, d.Unknown)
		}
		requests := s.engines[0].requests()
		if last := requests[len(requests)-1]; !c.known && last.raw != c.content {
			t.Errorf("%s became %s", c.content, last.raw)
		}
	}
}

// Token ids that whoever did the prefill sends along are those that the engine takes.
func TestForwardedTokenIDs(t *testing.T) {
	s := newSite(t, 1)
	chat := func(more string) string {
		return fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"abc"}]%s}`, more)
	}
	own := len(tokensOf(parse([]byte(chat(""))))) / tokenBytes
	for _, c := range []struct {
		more   string
		tokens int
	}{
		{"", own},
		{`,"kv_transfer_params":{"prompt_token_ids":[1,2,3,4,5]}`, 5},
		{`,"kv_transfer_params":{"prompt_token_ids":[1,2,3,4,5]},"echo":true`, own},
		{`,"kv_transfer_params":{"prompt_token_ids":null}`, own},
		{`,"kv_transfer_params":{"pin":"soft"}`, own},
	} {
		s.post(pathChat, chat(c.more))
		if d := s.decision(); !d.Known || d.Tokens != c.tokens {
			t.Errorf("%s: %d tokens, known %t; want %d", c.more, d.Tokens, d.Known, c.tokens)
		}
	}
}

// What engines said before one came into use is not believed any more: it may be of the same
// name and have another tokenizer.
func TestTokensAreForgottenWhenAnEngineComes(t *testing.T) {
	s := newSite(t, 2)
	asked := func() int { return s.engines[0].asked("/tokenize") + s.engines[1].asked("/tokenize") }
	for range 2 {
		s.post(pathCompletions, completion("x"))
	}
	if n := asked(); n != 1 {
		t.Fatalf("%d questions", n)
	}
	s.engines[1].kill()
	s.until("one is out", func() bool { return s.fleet.Usable() == 1 })
	s.post(pathCompletions, completion("x"))
	if n := asked(); n != 1 {
		t.Errorf("%d questions, one when an engine went", n)
	}
	s.engines[1].start(t)
	s.until("it is back", func() bool { return s.fleet.Usable() == 2 })
	for range 2 {
		s.post(pathCompletions, completion("x"))
	}
	if n := asked(); n != 2 {
		t.Errorf("%d questions, want another one", n)
	}
}

// A prompt whose token ids the router has not got says why, whatever the reason.
func TestUnknownTokensSayWhy(t *testing.T) {
	s := newSite(t, 1, func(o *siteOptions) { o.config.SendTokens = true })
	for _, c := range []struct{ path, content string }{
		{pathCompletions, completion("")},
		{pathCompletions, `{"model":"m","prompt":["a","b"]}`},
		{pathCompletions, `{"model":"m","prompt":"a","suffix":"b"}`},
		{pathCompletions, `{"model":"m","prompt":[]}`},
		{pathCompletions, `{"model":"m"}`},
		{pathChat, `{"model":"m"}`},
		{pathChat, `{"model":"m","messages":[],"chat_template_kwargs":5}`},
		{"/v1/embeddings", `{"model":"m","input":"a"}`},
	} {
		s.post(c.path, c.content)
		if d := s.decision(); d.Path != c.path || d.Known || d.Unknown == "" {
			t.Errorf("%s: known %t, %q", c.content, d.Known, d.Unknown)
		}
	}
	// Nobody says whose tokenizer it is where no model is named: the prompt is sent as it came.
	content := `{"prompt":"abc"}`
	s.post(pathCompletions, content)
	requests := s.engines[0].requests()
	if last := requests[len(requests)-1].raw; last != content || !s.decision().Known {
		t.Errorf("%s became %s", content, strconv.Quote(last))
	}
}
