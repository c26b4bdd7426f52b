"""A Firestore that refuses checks of rows as writes without effect, which the emulator accepts.

The refused writes are deletions of documents that must be missing, and updates without a field.
"""

import io
import json
from dataclasses import dataclass, field
from typing import Any

import urllib3


@dataclass
class CheckRefusingPool:
    """Connections to the emulator, with refused commits and the counts of sent requests.

    `status`: Google's name of the refusal, and `http_status` its status of HTTP. `verbs`: the verbs
    of requests in order, refused ones included. `refuses_all`: all requests are refused.
    """

    pool: urllib3.PoolManager
    status: str = "INVALID_ARGUMENT"
    http_status: int = 400
    refuses_all: bool = False
    verbs: list[str] = field(default_factory=list)

    def request(self, method: str, url: str, **options: Any) -> Any:
        verb = url.rpartition(":")[2].partition("?")[0]
        self.verbs.append(verb)
        writes = json.loads(options["body"]).get("writes", ())
        if self.refuses_all or any(map(_is_check, writes)):
            error = {"code": self.http_status, "status": self.status, "message": "not this form"}
            body = io.BytesIO(json.dumps({"error": error}).encode())
            return urllib3.HTTPResponse(body, status=self.http_status, preload_content=False)
        return self.pool.request(method, url, **options)

    def clear(self) -> None:
        """Do nothing: the connections belong to the emulator."""


def _is_check(write: dict[str, Any]) -> bool:
    if "delete" in write:
        return write.get("currentDocument") == {"exists": False}
    return "updateMask" in write and "fields" not in write["update"]
