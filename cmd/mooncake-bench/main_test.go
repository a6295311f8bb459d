package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	const question = `{"op":"find","groups":[{"kind":"full","b":16}],"L":16,"h":16,
         "N":4,"exists":[[0,0],[0,1]],"M":64,"apply_eagle":true}`
	for name, test := range map[string]struct {
		args     []string
		in       string
		code     int
		out, err string
	}{
		"answers":     {[]string{"coordinator", "--cases", "-"}, question, 0, `{"hit":32,"masks":[[1,1]]}`, ""},
		"from a file": {[]string{"coordinator", "--cases", "../../testdata/golden/coordinator/vllm.jsonl"}, "", 0, `"masks":`, ""},
		"help":        {[]string{"--help"}, "", 0, "coordinator", ""},
		"no command":  {nil, "", 0, "coordinator", ""},
		"example":     {[]string{"coordinator", "--help"}, "", 0, "mooncake-bench coordinator --cases", ""},
		"no cases":    {[]string{"coordinator"}, "", 2, "", `"cases" not set`},
		"no such":     {[]string{"coordinate"}, "", 2, "", `no subcommand "coordinate"`},
		"argument":    {[]string{"coordinator", "--cases", "-", "more"}, "", 2, "", `no argument "more"`},
		"no file":     {[]string{"coordinator", "--cases", "absent.json"}, "", 1, "", "opening the cases"},
		"compare":     {[]string{"compare", "--help"}, "", 0, "mooncake-bench compare --with", ""},
		"no system":   {[]string{"compare", "--with", "ours,theirs"}, "", 2, "", `system "theirs" is unknown`},
		"no length":   {[]string{"compare", "--tokens", "2k"}, "", 2, "", `--tokens: "2k" is no number`},
		"elsewhere":   {[]string{"compare", "--root", "/"}, "", 2, "", "give --root"},
		"no python":   {[]string{"compare", "--root", "../..", "--python", "/absent"}, "", 2, "", "make setup-bench"},
		"an argument": {[]string{"compare", "ours"}, "", 2, "", `no argument "ours"`},
		"malformed":   {[]string{"coordinator", "--cases", "-"}, "{", 1, "", "case 0: malformed case"},
		"in a file":   {[]string{"coordinator", "--cases", "main.go"}, "", 1, "", "main.go: case 0: malformed case"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			code := run(append([]string{"mooncake-bench"}, test.args...), strings.NewReader(test.in), &out, &errOut)
			if code != test.code || !strings.Contains(out.String(), test.out) || !strings.Contains(errOut.String(), test.err) {
				t.Errorf("code %d, out %q, err %q", code, out.String(), errOut.String())
			}
		})
	}
}
