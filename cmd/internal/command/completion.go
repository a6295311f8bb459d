package command

import (
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"
)

// The scripts ask the program itself, which lists what may come next when the
// last argument is --generate-bash-completion. NAME is the program's name, FUNC
// the same as part of a function's name.
const bashScript = `# bash: source <(NAME completion bash)
_FUNC() {
  local word=${COMP_WORDS[COMP_CWORD]} asked=("${COMP_WORDS[@]:0:COMP_CWORD}")
  [[ $word == -* ]] && asked+=("$word")
  COMPREPLY=($(compgen -W "$("${asked[@]}" --generate-bash-completion 2>/dev/null)" -- "$word"))
}
complete -o bashdefault -o default -F _FUNC NAME
`

const zshScript = `#compdef NAME
# zsh: source <(NAME completion zsh), or put it into $fpath as _NAME
_FUNC() {
  local word=${words[CURRENT]}
  local -a asked=("${(@)words[1,CURRENT-1]}") found
  [[ $word == -* ]] && asked+=("$word")
  found=("${(@f)$("${asked[@]}" --generate-bash-completion 2>/dev/null)}")
  if (( ${#found} )) && [[ -n ${found[1]} ]]; then compadd -- "${found[@]%%:*}"; else _files; fi
}
if [[ ${funcstack[1]} == _FUNC || ${funcstack[1]} == _NAME ]]; then _FUNC "$@"; else compdef _FUNC NAME; fi
`

const pwshScript = `# pwsh: NAME completion pwsh | Out-String | Invoke-Expression
Register-ArgumentCompleter -Native -CommandName NAME -ScriptBlock {
  param($word, $ast, $position)
  $asked = @($ast.CommandElements | Select-Object -Skip 1 | ForEach-Object { "$_" })
  if ($word -and -not $word.StartsWith('-')) { $asked = @($asked | Select-Object -SkipLast 1) }
  & NAME @asked --generate-bash-completion 2>$null | Where-Object { $_ -like "$word*" } | ForEach-Object {
    [System.Management.Automation.CompletionResult]::new($_, $_, 'ParameterValue', $_)
  }
}
`

// completionCommand prints scripts that complete commands and flags.
func (d *Daemon) completionCommand() *cli.Command {
	shells := []string{"bash", "zsh", "fish", "pwsh"}
	return &cli.Command{
		Name: "completion", Usage: "print a script that completes commands and flags", ArgsUsage: strings.Join(shells, "|"), OnUsageError: usageError,
		Description: examples(
			"source <("+d.Name+" completion bash)",
			d.Name+" completion fish > ~/.config/fish/completions/"+d.Name+".fish"),
		BashComplete: func(*cli.Context) { fmt.Fprintln(d.Out, strings.Join(shells, "\n")) },
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 {
				return UsageErrorf("completion wants one of %s", strings.Join(shells, ", "))
			}
			var script string
			switch shell := c.Args().First(); shell {
			case "bash":
				script = bashScript
			case "zsh":
				script = zshScript
			case "pwsh":
				script = pwshScript
			case "fish":
				fish, err := c.App.ToFishCompletion()
				if err != nil {
					return fmt.Errorf("completion: %w", err)
				}
				script = fish
			default:
				return UsageErrorf("no completion for %q; there are %s", shell, strings.Join(shells, ", "))
			}
			script = strings.NewReplacer("NAME", d.Name, "FUNC", strings.ReplaceAll(d.Name, "-", "_")).Replace(script)
			_, err := io.WriteString(d.Out, script)
			return err
		},
	}
}
