"""The breaches of all rules in the whole tree, from a single parse of each file."""

from dataclasses import dataclass
from functools import cache

from tests.unit.house.language import LANGUAGE_RULES
from tests.unit.house.rules import RULES, sources


@dataclass(frozen=True)
class TreeReport:
    """The results of the rules for all files. The parsed files are not kept."""

    paths: tuple[str, ...]
    """The paths of all files."""
    breaches: dict[str, list[str]]
    """The breaches of each rule, by the name of the rule."""
    lengths: tuple[int, ...]
    """The lengths of the functions of the product, in lines."""


@cache
def read_tree() -> TreeReport:
    """Parse each file once, and apply all rules."""
    rules = (*RULES, *LANGUAGE_RULES)
    breaches: dict[str, list[str]] = {rule.__name__: [] for rule in rules}
    paths, lengths = [], []
    for file in sources():
        paths.append(file.path)
        for rule in rules:
            breaches[rule.__name__] += [f"{file.path}:{breach}" for breach in rule(file)]
        if file.is_product:
            lengths += [lines for _, lines in file.functions()]
        file.forget_tree()
    return TreeReport(tuple(paths), breaches, tuple(lengths))
