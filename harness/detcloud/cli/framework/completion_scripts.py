"""Completion scripts for shells, made from the completion table.

A script walks over the words before the cursor. A word belongs to the command if the table has an
entry for the words so far and that word. If a flag has an entry, the next word is the flag's value.
"""

from __future__ import annotations

# The word in the table that stands for names of files. No word of a command begins with @.
FILES = "@files"

_BASH = """\
# Completion of detcloud for bash; zsh reads it through bashcompinit.
_detcloud_words() {
  case "$1" in
@table@
    *) return 1 ;;
  esac
}

_detcloud() {
  local typed="" value="" word="" next="" typing="${COMP_WORDS[COMP_CWORD]}" following="" place=1
  while [ "$place" -lt "$COMP_CWORD" ]; do
    word="${COMP_WORDS[$place]}"
    place=$((place + 1))
    # Bash takes --flag=value apart at the sign.
    if [ "$word" = "=" ]; then continue; fi
    next="${typed:+$typed }$word"
    if [ -n "$value" ]; then
      value=""
    elif _detcloud_words "$next" > /dev/null; then
      case "$word" in
        -*) value="$next" ;;
        *) typed="$next" ;;
      esac
    fi
  done
  if [ "$typing" = "=" ]; then typing=""; fi
  following="$(_detcloud_words "${value:-$typed}")"
  COMPREPLY=()
  case " $following " in
    *" @files "*) while IFS= read -r word; do COMPREPLY+=("$word"); done \\
      < <(compgen -f -- "$typing") ;;
  esac
  while IFS= read -r word; do
    if [ "$word" != "@files" ]; then COMPREPLY+=("$word"); fi
  done < <(compgen -W "$following" -- "$typing")
}

complete -o filenames -F _detcloud detcloud
"""

_ZSH = """\
# Completion of detcloud for zsh.
autoload -U +X bashcompinit && bashcompinit

"""

_FISH = """\
# Completion of detcloud for fish.
function __detcloud_words
  switch "$argv[1]"
@table@
    case '*'
      return 1
  end
end

function __detcloud_complete
  set -l typed ""
  set -l value ""
  set -l before (commandline -opc)
  for word in $before[2..-1]
    set -l next (string trim -- "$typed $word")
    if test -n "$value"
      set value ""
    else if __detcloud_words "$next" > /dev/null
      if string match -q -- "-*" "$word"
        set value "$next"
      else
        set typed "$next"
      end
    end
  end
  set -l key "$typed"
  if test -n "$value"
    set key "$value"
  end
  for word in (string split -n " " -- (__detcloud_words "$key"))
    if test "$word" = "@files"
      __fish_complete_path (commandline -ct)
    else
      echo "$word"
    end
  end
end

complete -c detcloud -f -a "(__detcloud_complete)"
"""


def bash_script(table: dict[str, str]) -> str:
    """Return the completion script for bash 3.2 and later. Nothing is written to a file.

    Args:
        table: the result of `completion_table`.
    """
    lines = [f"    '{typed}') echo '{words}' ;;" for typed, words in table.items()]
    return _BASH.replace("@table@", "\n".join(lines))


def zsh_script(table: dict[str, str]) -> str:
    """Return the completion script for zsh: the bash script, loaded through bashcompinit.

    Args:
        table: the result of `completion_table`.
    """
    return _ZSH + bash_script(table)


def fish_script(table: dict[str, str]) -> str:
    """Return the completion script for fish 3 and later.

    Args:
        table: the result of `completion_table`.
    """
    lines = [f"    case '{typed}'\n      echo '{words}'" for typed, words in table.items()]
    return _FISH.replace("@table@", "\n".join(lines))
