"""Google's REST interfaces as a table of answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.gcp.google_api import GoogleError

Answer = Mapping[str, Any] | GoogleError | Callable[[Any], Any]


@dataclass
class Answers:
    """Answers by method and by the end of the address without the query.

    A function in the table is called with the body. An address without an answer raises a 404.
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
                result = answer(body) if callable(answer) else answer
                if isinstance(result, GoogleError):
                    raise result
                return dict(result)
        raise GoogleError(404, f"no answer for {path}")

    def urls_of(self, method: str) -> list[str]:
        """Return the addresses of the calls by a method."""
        return [url for name, url, _ in self.calls if name == method]
