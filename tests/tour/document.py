"""The text of a journey, and the copies of the journeys in ARCHITECTURE.md."""

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.tour.handlers import ROOT, Place
from tests.tour.journeys import JOURNEYS, run_journey
from tests.tour.recorder import Hop

DOCUMENT = ROOT / "ARCHITECTURE.md"
BLOCK = re.compile(r"(```tour (\w+)\n).*?(^```$)", re.MULTILINE | re.DOTALL)


def journey_text(name: str, *, with_lines: bool = True) -> str:
    """Run a journey and return its text.

    Args:
        with_lines: whether places have line numbers, which change with each edit of a file.
    """
    with tempfile.TemporaryDirectory() as folder:
        hops = run_journey(name, Path(folder))
    lines = [f"{name}: {JOURNEYS[name].title}"]
    for number, hop in enumerate(hops, 1):
        lines += _hop_lines(number, hop, with_lines)
    return "\n".join(lines) + "\n"


def renewed_document(text: str) -> str:
    """Return a document whose blocks of code with `tour NAME` contain the present journeys."""
    return BLOCK.sub(
        lambda match: match[1] + journey_text(match[2], with_lines=False) + match[3], text
    )


def _hop_lines(number: int, hop: Hop, with_lines: bool) -> Iterator[str]:
    """Yield the lines of a hop: the message with the handler, the decisions, and the rows."""
    yield f"{number:2} {hop.text}{_place_text(hop.place, with_lines) if hop.place else ''}"
    for place in hop.decisions:
        yield f"     asks{_place_text(place, with_lines)}"
    if hop.rows:
        rows = (f"{partition} ({', '.join(kinds)})" for partition, kinds in hop.rows.items())
        yield f"     rows: {'; '.join(rows)}"


def _place_text(place: Place, with_lines: bool) -> str:
    line = f":{place.line}" if with_lines else ""
    return f"  {place.name}  {place.file}{line}"
