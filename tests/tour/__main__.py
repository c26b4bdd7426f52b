"""`python -m tests.tour [JOURNEY]`: print a journey, or the list of journeys without a name."""

import argparse
import sys
from collections.abc import Sequence

from tests.tour.document import DOCUMENT, journey_text, renewed_document
from tests.tour.journeys import JOURNEYS


def main(words: Sequence[str] | None = None) -> int:
    """Print a journey or the list, or renew the document. Return 2 for an unknown journey."""
    parser = argparse.ArgumentParser(prog="python -m tests.tour", description=__doc__)
    parser.add_argument("journey", nargs="?", default="", help=", ".join(JOURNEYS))
    parser.add_argument("--write", action="store_true", help=f"renew {DOCUMENT.name}")
    options = parser.parse_args(words)
    if options.write:
        DOCUMENT.write_text(renewed_document(DOCUMENT.read_text()))
    elif not options.journey:
        for name, journey in JOURNEYS.items():
            print(f"make tour JOURNEY={name}  {journey.title}")
    elif options.journey in JOURNEYS:
        print(journey_text(options.journey), end="")
    else:
        names = ", ".join(JOURNEYS)
        print(f"unknown journey {options.journey!r}; choose one of {names}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
