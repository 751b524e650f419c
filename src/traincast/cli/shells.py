"""How bash, zsh and fish ask for completions, and how they are answered.

A shell runs the program that is being typed with ``_TRAINCAST_COMPLETE=SHELL_complete``, the words before the cursor's
in ``COMP_WORDS``, a line each, and the cursor's in ``COMP_WORD``. Each line of the answer is ``plain``, ``dir`` or
``file``, a value, and what it means, with tabs between. The scripts are ours, not click's, which (8.5) lose a help text
after its first comma (fish), values after ``=`` (all; in zsh the option, too, is gone from the line), and programs that
are called by their path (zsh, fish, and bash where it begins with ``~``).
"""

import os
import re

from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, split_arg_string

VARIABLE = "_TRAINCAST_COMPLETE"
"""What click looks for in the environment; it makes the name from that of the program."""

_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' kind value help
    COMPREPLY=()
    while IFS=$'\\t' read -r kind value help; do
        case $kind in
            plain) COMPREPLY+=("$value") ;;
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
        esac
    done < <(env COMP_WORDS="${COMP_WORDS[*]:0:COMP_CWORD}" COMP_WORD="$2" \
%(complete_var)s=bash_complete "${1/#\\~/$HOME}" 2>/dev/null)
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_ZSH = """\
#compdef %(prog_name)s

%(complete_func)s() {
    local -a answer cells plain described
    local line before="${(pj:\\n:)${(@Q)words[1,CURRENT-1]}}" program=${~${(Q)words[1]}}
    answer=("${(@f)$(env COMP_WORDS="$before" COMP_WORD="${(Q)PREFIX}" \
%(complete_var)s=zsh_complete $program 2>/dev/null)}")
    # The value after = is what is completed, a name or a file.
    [[ $PREFIX == --*=* ]] && compset -P 1 '*='
    for line in $answer; do
        cells=("${(@ps:\\t:)line}")
        case $cells[1] in
            plain)
                if [[ -n $cells[3] ]]; then
                    described+=("${cells[2]//:/\\\\:}:$cells[3]")
                else
                    plain+=("$cells[2]")
                fi ;;
            dir) _files -/ ;;
            file) _files ;;
        esac
    done
    (( $#described )) && _describe -V %(prog_name)s described -M 'm:{a-zA-Z}={A-Za-z}'
    (( $#plain )) && compadd -V %(prog_name)s-names -M 'm:{a-zA-Z}={A-Za-z}' -a plain
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    # A file of $fpath, which is run at the first completion.
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""

_FISH = """\
function %(complete_func)s
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program (string replace -r '^~' $HOME -- $words[1])
    for line in (env COMP_WORDS=(string join \\n -- $words | string collect) "COMP_WORD=$current" \
%(complete_var)s=fish_complete $program 2>/dev/null)
        set -l cells (string split \\t -- $line)
        switch $cells[1]
            case plain
                printf '%%s\\t%%s\\n' $cells[2] $cells[3]
            case dir file
                # What stands before a path in its word: an option and =.
                set -l before (string match -r -- '^--[^=]*=' $cells[2])
                for path in (__fish_complete_path (string replace -r -- '^--[^=]*=' '' $cells[2]))
                    printf '%%s\\n' "$before$path"
                end
        end
    end
end

complete --no-files --keep-order --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class _Shell(ShellComplete):
    """What the shells have in common."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the cursor's, without the program, and the cursor's."""
        words = os.environ.get("COMP_WORDS", "").split("\n")
        return words[1:], _unquoted(os.environ.get("COMP_WORD", ""))

    def format_completion(self, item: CompletionItem) -> str:
        """Return the line of one completion."""
        return "\t".join((item.type, item.value, _first_sentence(item.help or "")))


class Bash(_Shell):
    """bash 4.4 or later."""

    name = "bash"
    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words; bash hands out ``--model=llama3`` as three, and words as they are quoted."""
        words, current = super().get_completion_args()
        known = [_unquoted(word) for word in words]
        pairs = zip(["", *known], known, strict=False)
        return [word for before, word in pairs if word != "=" or not before.startswith("-")], current


class Zsh(_Shell):
    """zsh, with its completion system (``compinit``)."""

    name = "zsh"
    source_template = _ZSH


class Fish(_Shell):
    """fish 3 or later, which wants a whole word back, also after ``=``."""

    name = "fish"
    source_template = _FISH

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Return what completes the word."""
        found = super().get_completions(args, incomplete)
        option = re.match("--[^=]*=", incomplete)
        if option is None:
            return found
        return [CompletionItem(f"{option[0]}{item.value}", item.type, item.help) for item in found]


SHELLS: dict[str, type[ShellComplete]] = {kind.name: kind for kind in (Bash, Zsh, Fish)}


def register() -> None:
    """Let click answer the shells as is done here."""
    for kind in SHELLS.values():
        add_completion_class(kind)


def _unquoted(word: str) -> str:
    """Return a word without its quotes, of which the last may not be typed yet."""
    return "".join(split_arg_string(word)[:1])


def _first_sentence(text: str) -> str:
    """Return the first sentence of a help text, in one line."""
    return " ".join(text.split()).partition(". ")[0].removesuffix(".")
