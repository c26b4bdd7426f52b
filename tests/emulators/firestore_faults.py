"""Faults of Firestore that its emulator does not have: requests that are refused before anything is
done, in each of the ways in which Firestore does, and answers that are lost on the way.
"""

import json
from collections import Counter
from dataclasses import dataclass, field

# Status of HTTP, and Google's own.
REFUSALS = ((429, "RESOURCE_EXHAUSTED"), (409, "ABORTED"), (503, "UNAVAILABLE"))


@dataclass
class FirestoreFaults:
    """Faults by the method of a request: one in so many is refused, and the answer to one in so
    many lost; 0: none. They are counted.
    """

    refused_of: int = 0
    lost_of: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)

    def count(self, method: str) -> int:
        """Count a request; returns its number."""
        self.asked[method] += 1
        return self.asked[method]

    def refusal(self, method: str, number: int) -> tuple[int, bytes] | None:
        """Return the status and the content of a refusal, None where the request is let through."""
        if not self.refused_of or number % self.refused_of:
            return None
        status, name = REFUSALS[self.refused[method] % len(REFUSALS)]
        self.refused[method] += 1
        error = {"error": {"code": status, "status": name, "message": "too much at once"}}
        # Reads answer with a list.
        said = error if method == "commit" else [error]
        return status, json.dumps(said).encode()

    def is_lost(self, method: str, number: int) -> bool:
        """Whether the answer to a request is lost."""
        if not self.lost_of or number % self.lost_of:
            return False
        self.lost[method] += 1
        return True
