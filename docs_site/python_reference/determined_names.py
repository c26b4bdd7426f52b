"""All names of Determined's modules: the counterparts in detcloud, or the replacements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from detcloud.compatibility.name_tables import Module
from detcloud.compatibility.names import FORMER_ROOT, MODULES, ROOT

PAGE = "determined.md"
HEADING = "## All names"
# Internal packages of Determined. Model code and scripts of users do not import these packages.
_INTERNAL_PARTS = ("exec", "launch", "workload", "layers", "profiler")


def render_names(places: Mapping[str, str]) -> str:
    """Return a section with the names of each module, as Markdown.

    Args:
        places: the page and anchor of each documented class or function, by the path in detcloud.
    """
    return "\n\n".join([HEADING, *_module_blocks(places)])


def _module_blocks(places: Mapping[str, str]) -> Iterator[str]:
    """Yield the blocks of each module. Modules with equal names are one heading."""
    for name, (modules, module) in _distinct_modules().items():
        yield f"### {name}"
        others = [f"`{other}`" for other in modules if other != name]
        if others:
            yield f"Also as {', '.join(others)}."
        if module.offered:
            yield (
                ", ".join(
                    _offered_name(offered, place, places)
                    for offered, place in sorted(module.offered.items())
                    if not offered.startswith("_")
                )
                + "."
            )
        yield from _missing_blocks(module)


def _distinct_modules() -> dict[str, tuple[list[str], Module]]:
    """Return the modules that have names, with all their own names, by the first."""
    found: dict[str, tuple[list[str], Module]] = {}
    first_names: dict[int, str] = {}
    for name, module in MODULES.items():
        part = name.removeprefix(f"{ROOT}.").partition(".")[0]
        is_private = part.startswith("_") or any(w.startswith("_") for w in name.split("."))
        if name.startswith(FORMER_ROOT) or is_private or part in _INTERNAL_PARTS:
            continue
        if not module.offered and not module.missing:
            continue
        first = first_names.setdefault(id(module), name)
        found.setdefault(first, ([], module))[0].append(name)
    return found


def _offered_name(name: str, place: str, places: Mapping[str, str]) -> str:
    target = places.get(place.replace(":", "."), "").removeprefix(PAGE)
    return f"[`{name}`]({target})" if target else f"`{name}`"


def _missing_blocks(module: Module) -> Iterator[str]:
    """Yield the names that detcloud does not support, with the replacement, grouped by it."""
    groups = defaultdict(list)
    for name, sentence in module.missing.items():
        if not name.startswith("_"):
            groups[sentence].append(f"`{name}`")
    if groups:
        yield "Not supported:"
        yield "\n".join(f"- {', '.join(names)}: {text}" for text, names in groups.items())
