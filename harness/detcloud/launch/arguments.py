"""The command line of all launchers: `[[OVERRIDES...] --] (--trial TRIAL)|(SCRIPT...)`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

WORKER = "detcloud.launch.trial_worker"
HELP_OPTIONS = ("-h", "--help")


@dataclass(frozen=True, slots=True)
class LauncherArguments:
    """The parsed command line of a launcher."""

    overrides: list[str]
    """The options for the underlying launcher, such as horovodrun."""
    command: list[str]
    """The command that runs one worker."""


def parse_launcher_arguments(
    name: str, argv: Sequence[str], description: str, *, takes_overrides: bool = True
) -> LauncherArguments:
    """Return the overrides in the arguments of the launcher `name`, and the command of a worker.

    The words before the first `--` are the overrides; without `--`, no overrides exist. The
    remaining words are `--trial TRIAL`, or a script with the script's own arguments. The worker's
    command trains the trial class or runs the script, a script `.py` by this interpreter.

    Print the usage and `description` and exit with 0 for `-h` or `--help`, except among a script's
    own arguments. For invalid arguments, print the usage and the error to stderr and exit with 1.
    Invalid are: both a trial and a script, neither of them, an unknown option, a first override
    without a leading `-`, and overrides without `takes_overrides`.
    """
    words = list(argv)
    cut = words.index("--") if "--" in words else None
    overrides = words[:cut] if cut is not None else []
    rest = words[cut + 1 :] if cut is not None else words
    if any(word in HELP_OPTIONS for word in (*overrides, *_own_options(rest))):
        print(_usage_text(name, takes_overrides) + "\n\n" + description, flush=True)
        sys.exit(0)
    if overrides and not overrides[0].startswith("-"):
        text = (
            f"{overrides[0]!r} before the first -- is not an option: a command whose own arguments "
            f"have a -- follows another one, as in `-- {' '.join(words[:cut])} -- ...`"
        )
        _refuse(name, takes_overrides, text)
    if overrides and not takes_overrides:
        _refuse(name, takes_overrides, f"{overrides[0]!r} before -- is not a known option")
    if not rest:
        _refuse(name, takes_overrides, "neither --trial nor a script was given")
    trial, script = _split_trial(name, rest, takes_overrides)
    if trial is not None and script:
        text = f"--trial {trial} and the script {script[0]!r} were given: give one of them"
        _refuse(name, takes_overrides, text)
    return LauncherArguments(overrides, _worker_command(trial, script))


def _own_options(rest: list[str]) -> list[str]:
    """Return the words that may be options of the launcher; a script's options follow the script's
    name.
    """
    if rest[:1] == ["--trial"]:
        return rest[2:3]
    return rest[:2] if rest and rest[0].startswith("--trial=") else rest[:1]


def _split_trial(name: str, rest: list[str], takes_overrides: bool) -> tuple[str | None, list[str]]:
    """Return the trial class, or None for a script, and the remaining words.

    Exit with 1 if an option is unknown or --trial lacks a value.
    """
    first = rest[0]
    if first.startswith("--trial="):
        return first.removeprefix("--trial="), rest[1:]
    if first != "--trial":
        if first.startswith("-"):
            text = (
                f"{first!r} is not a known option: options of its own end with --, as in "
                f"`{first} -- ...`"
            )
            _refuse(name, takes_overrides, text)
        return None, rest
    if len(rest) < 2:
        _refuse(name, takes_overrides, "--trial needs file:Class")
    return rest[1], rest[2:]


def _worker_command(trial: str | None, script: list[str]) -> list[str]:
    """Return the command that trains the trial class, or runs the script with its arguments.

    `script`, the script and its arguments, is only used without a trial. A script `.py` runs by
    this interpreter.
    """
    if trial is not None:
        return [sys.executable, "-m", WORKER, trial]
    # The interpreter runs a Python file that has no execute bit.
    return [sys.executable, *script] if script[0].endswith(".py") else script


def _usage_text(name: str, takes_overrides: bool) -> str:
    """Return the usage line of the launcher `name`."""
    overrides = "[[OVERRIDES...] --] " if takes_overrides else ""
    return f"usage: python3 -m detcloud.launch.{name} {overrides}(--trial TRIAL)|(SCRIPT...)"


def _refuse(name: str, takes_overrides: bool, text: str) -> NoReturn:
    """Print the usage and the error `text` to stderr, and exit with 1."""
    print(f"{_usage_text(name, takes_overrides)}\ndetcloud: {text}", file=sys.stderr, flush=True)
    sys.exit(1)
