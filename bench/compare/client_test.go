package compare

import (
	"strings"
	"testing"
	"time"
)

// clock advances by a second a look.
func clock() func() time.Time {
	at := time.Unix(0, 0)
	return func() time.Time {
		at = at.Add(time.Second)
		return at
	}
}

const (
	firstEvent  = `data: {"choices":[{"logprobs":{"tokens":["token_id:5"],"token_logprobs":[-0.5],"top_logprobs":[{"token_id:5":-0.5,"token_id:6":-0.75}]}}]}` + "\n\n"
	secondEvent = `data: {"choices":[{"logprobs":{"tokens":["token_id:7"],"token_logprobs":[-1],"top_logprobs":[{"token_id:7":-1}]},"finish_reason":"length"}]}` + "\n\n"
	usageEvent  = `data: {"choices":[],"usage":{"prompt_tokens":2000,"prompt_tokens_details":{"cached_tokens":1920}}}` + "\n\n"
	endEvent    = "data: [DONE]\n\n"
)

func TestReadAnswer(t *testing.T) {
	begin := time.Unix(0, 0)
	answer, err := readAnswer(strings.NewReader(": ping\n\n"+firstEvent+secondEvent+usageEvent+endEvent), begin, clock())
	if err != nil {
		t.Fatal(err)
	}
	if answer.TTFT != time.Second || len(answer.Gaps) != 1 || answer.Gaps[0] != time.Second || answer.CachedTokens != 1920 {
		t.Errorf("read %+v", answer)
	}
	if len(answer.Tokens) != 2 || answer.Tokens[0] != (Token{"token_id:5", -0.5, 0.25}) || answer.Tokens[1].Margin != -1 {
		t.Errorf("read tokens %+v", answer.Tokens)
	}
}

func TestReadAnswerRefuses(t *testing.T) {
	for name, test := range map[string]struct{ stream, want string }{
		"no end":          {firstEvent, "ended early"},
		"no token":        {usageEvent + endEvent, "no token"},
		"an error":        {`data: {"error":{"message":"out of luck"}}` + "\n\n", "out of luck"},
		"a failed load":   {`data: {"choices":[{"finish_reason":"error"}]}` + "\n\n", "with an error"},
		"no JSON":         {"data: {\n\n", "decoding"},
		"missing numbers": {`data: {"choices":[{"logprobs":{"tokens":["a"]}}]}` + "\n\n", "1 tokens and 0"},
		"a long line":     {"data: " + strings.Repeat("x", maxEventBytes+1), "too long"},
	} {
		if _, err := readAnswer(strings.NewReader(test.stream), time.Time{}, clock()); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, not %q", name, err, test.want)
		}
	}
}

func FuzzReadAnswer(f *testing.F) {
	f.Add(firstEvent + secondEvent + usageEvent + endEvent)
	f.Add("data: {}\n\ndata: [DONE]")
	f.Fuzz(func(t *testing.T, stream string) {
		answer, err := readAnswer(strings.NewReader(stream), time.Time{}, clock())
		if err == nil && len(answer.Tokens) == 0 {
			t.Error("an answer without a token")
		}
	})
}

func TestSumSamples(t *testing.T) {
	const page = `# HELP vllm:running x
vllm:running{engine="0"} 2.0
vllm:running{engine="1",path="{a} b"} 1
vllm:running_total 9
vllm:usage 0.5
vllm:bad x
`
	if sum, err := sumSamples(page, "vllm:running", "vllm:usage"); err != nil || sum != 3.5 {
		t.Errorf("sum %g, %v", sum, err)
	}
	for _, name := range []string{"vllm:absent", "vllm:bad"} {
		if _, err := sumSamples(page, name); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestWrong(t *testing.T) {
	reference := []Token{{"a", -0.1, 1}, {"b", -0.2, 1e-5}, {"c", -0.3, 1}}
	with := func(i int, token Token) []Token {
		got := append([]Token(nil), reference...)
		got[i] = token
		return got
	}
	for name, test := range map[string]struct {
		got  []Token
		want string
	}{
		"equal":            {reference, ""},
		"noise":            {with(0, Token{"a", -0.1000001, 1}), ""},
		"another token":    {with(0, Token{"x", -0.1, 1}), "token 0 is x"},
		"moved":            {with(2, Token{"c", -0.4, 1}), "token 2 moved"},
		"a tie":            {with(1, Token{"x", -0.2, 1}), ""},
		"a tie and behind": {[]Token{reference[0], {"x", -0.2, 1}, {"y", -9, 1}}, ""},
		"too few":          {reference[:2], "2 tokens, not 3"},
	} {
		if got := wrong(reference, test.got); !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
			t.Errorf("%s: %q, not %q", name, got, test.want)
		}
	}
}
