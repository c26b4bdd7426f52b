"""A command of the command line: words, summary and module."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A command, `detcloud NOUN VERB`, with all other spellings."""

    noun: str
    """The noun, or "" for a command that has flat forms only."""
    verb: str
    """One word, or two words as in `label add`."""
    summary: str
    """The effect in lower case, without a full stop, such as `list trials`."""
    module: str
    """The module of `detcloud.cli.commands` whose `HANDLERS` has the command."""
    flat: tuple[str, ...] = ()
    """Spellings without the noun. The first is shown by `detcloud --help`."""
    verb_aliases: tuple[str, ...] = ()
    """Other spellings of the verb after the noun."""
    is_local: bool = False
    """Whether the command uses only this machine, and therefore has no `--url`."""

    @property
    def name(self) -> str:
        """The noun and the verb, or the verb alone for a command without a noun."""
        return f"{self.noun} {self.verb}".strip()
