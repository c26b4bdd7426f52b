"""Faults of Firestore that the emulator does not have: refused requests without an effect, and lost
answers.
"""

import json
from collections import Counter
from dataclasses import dataclass, field

# Status of HTTP, and Google's own.
REFUSALS = ((429, "RESOURCE_EXHAUSTED"), (409, "ABORTED"), (503, "UNAVAILABLE"))


@dataclass
class FirestoreFaults:
    """Faults by the method of a request.

    Each `refused_of`-th request is refused and each `lost_of`-th answer is lost; 0 means none. The
    counters have the numbers by method.
    """

    refused_of: int = 0
    lost_of: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)

    def count(self, method: str) -> int:
        """Count a request and return its number."""
        self.asked[method] += 1
        return self.asked[method]

    def refusal(self, method: str, number: int) -> tuple[int, bytes] | None:
        """Return the status and the content of a refusal, or None for a request that passes."""
        if not self.refused_of or number % self.refused_of:
            return None
        status, name = REFUSALS[self.refused[method] % len(REFUSALS)]
        self.refused[method] += 1
        error = {"error": {"code": status, "status": name, "message": "too much at once"}}
        # Reads answer with a list.
        content = error if method == "commit" else [error]
        return status, json.dumps(content).encode()

    def is_lost(self, method: str, number: int) -> bool:
        """Whether the answer to a request is lost."""
        if not self.lost_of or number % self.lost_of:
            return False
        self.lost[method] += 1
        return True
