"""Google's interfaces as a table of answers, for code that calls them over REST."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.gcp.google_api import GoogleError

Answer = Mapping[str, Any] | GoogleError | Callable[[Any], Any]


@dataclass
class Answers:
    """Answers by the method and the end of an address, without its query; what has none is not
    there. A function is called with the body.
    """

    table: dict[tuple[str, str], Answer]
    calls: list[tuple[str, str, Any]] = field(default_factory=list)

    def call(
        self, method: str, url: str, body: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        self.calls.append((method, url, body))
        path = url.partition("?")[0]
        for (wanted, end), answer in self.table.items():
            if method == wanted and path.endswith(end):
                found = answer(body) if callable(answer) else answer
                if isinstance(found, GoogleError):
                    raise found
                return dict(found)
        raise GoogleError(404, f"there is nothing at {path}")

    def urls_of(self, method: str) -> list[str]:
        """Return the addresses of the calls by one method."""
        return [url for name, url, _ in self.calls if name == method]
