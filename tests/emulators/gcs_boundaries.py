"""Google's issue of narrowed tokens (IAM and STS), and a proxy of fake-gcs-server that enforces the
boundaries of tokens.

The conditions of boundaries are evaluated if they have the documented forms for prefixes:
`resource.name.startsWith(TEXT)` and the same with `objectListPrefix`, joined by `||`.
"""

import json
import re
import secrets
import time
from collections.abc import Collection, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.emulators.forwarding import ForwardingHandler
from tests.emulators.http_server import serve_requests
from tests.emulators.storage_requests import asked_action

RULES_MAX, CONDITION_CHARACTERS_MAX = 10, 2048
# The object permissions of the predefined roles.
ROLES = {
    "inRole:roles/storage.objectCreator": {"create"},
    "inRole:roles/storage.objectViewer": {"get", "list"},
    "inRole:roles/storage.objectUser": {"create", "delete", "get", "list"},
}
_ACCOUNTS = "/v1/projects/-/serviceAccounts/"
_TEXT = r"(\"(?:[^\"\\]|\\.)*\")"
_NAME = re.compile(rf"resource\.name\.startsWith\({_TEXT}\)")
_LISTED = re.compile(
    r"api\.getAttribute\('storage\.googleapis\.com/objectListPrefix', ''\)"
    rf"\.startsWith\({_TEXT}\)"
)


@dataclass
class NarrowedTokens:
    """Google's account of storage, its authorized callers, and the issued tokens.

    `account` and `others`: accounts for which callers with `caller_tokens` may issue tokens.
    `seconds`: lifetime of narrowed tokens. `asks_delete_to_replace`: replacing an object needs the
    permission to delete, before conditions count. `used`: (action, bucket, name or prefix) of
    allowed requests. `accounts`: accounts of issued tokens.
    """

    account: str
    caller_tokens: Container[str]
    others: Collection[str] = ()
    whole: dict[str, str] = field(default_factory=dict)
    lifetimes: dict[str, int] = field(default_factory=dict)
    boundaries: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    seconds: int = 3600
    asks_delete_to_replace: bool = False
    issued: list[str] = field(default_factory=list)
    used: set[tuple[str, str, str]] = field(default_factory=set)
    accounts: set[str] = field(default_factory=set)

    def generate(self, path: str, authorization: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make a token of the whole account. Raises RequestRefused."""
        if authorization.removeprefix("Bearer ") not in self.caller_tokens:
            raise RequestRefused(403, "IAM_PERMISSION_DENIED")
        account = path.removeprefix(_ACCOUNTS).removesuffix(":generateAccessToken")
        if not path.startswith(_ACCOUNTS) or account not in (self.account, *self.others):
            raise RequestRefused(404, "NOT_FOUND")
        lifetime = int(str(body["lifetime"]).removesuffix("s"))
        if not 0 < lifetime <= 3600 or not body["scope"]:
            raise RequestRefused(400, "INVALID_ARGUMENT")
        token = f"ya29.whole.{secrets.token_hex(12)}"
        self.accounts.add(account)
        self.whole[token], self.lifetimes[token] = account, lifetime
        ends = datetime.fromtimestamp(time.time() + lifetime, UTC)
        return {"accessToken": token, "expireTime": ends.strftime("%Y-%m-%dT%H:%M:%SZ")}

    def exchange(self, form: Mapping[str, str]) -> dict[str, Any]:
        """Narrow a whole account's token by a boundary and return STS's answer.

        Raise RequestRefused for an unknown token or a too large boundary.
        """
        if form["subject_token"] not in self.whole:
            raise RequestRefused(400, "invalid_grant")
        options = form["options"]
        boundary = json.loads(unquote(options) if options.startswith("%") else options)
        rules = boundary["accessBoundary"]["accessBoundaryRules"]
        for rule in rules:
            expression = rule.get("availabilityCondition", {}).get("expression", "")
            if len(rules) > RULES_MAX or len(expression) > CONDITION_CHARACTERS_MAX:
                raise RequestRefused(400, "invalid_request")
        token = f"ya29.narrow.{secrets.token_hex(12)}"
        self.boundaries[token] = rules
        self.issued.append(token)
        return {
            "access_token": token,
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "token_type": "Bearer",
            "expires_in": self.seconds,
        }

    def allows(self, authorization: str, action: str, bucket: str, name: str) -> bool:
        """Return whether a token allows an action. `name`: name of the object or prefix of the
        list.
        """
        rules = self.boundaries.get(authorization.removeprefix("Bearer "), [])
        return any(_rule_allows(rule, action, bucket, name) for rule in rules)


class RequestRefused(Exception):
    """A refusal with an HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def _rule_allows(rule: Mapping[str, Any], action: str, bucket: str, name: str) -> bool:
    if rule["availableResource"] != f"//storage.googleapis.com/projects/_/buckets/{bucket}":
        return False
    if not any(action in ROLES.get(role, ()) for role in rule["availablePermissions"]):
        return False
    place = f"projects/_/buckets/{bucket}"
    resource = place if action == "list" else f"{place}/objects/{name}"
    listed = name if action == "list" else ""
    condition = rule.get("availabilityCondition")
    return condition is None or _evaluate(condition["expression"], resource, listed)


def _evaluate(expression: str, resource: str, listed: str) -> bool:
    operands = []
    for term in expression.split(" || "):
        for pattern, text in ((_NAME, resource), (_LISTED, listed)):
            if match := pattern.fullmatch(term):
                operands.append(text.startswith(json.loads(match[1])))
                break
        else:
            raise AssertionError(f"a condition that nobody can evaluate: {term}")
    return any(operands)


@contextmanager
def narrowed_storage(tokens: NarrowedTokens, store: str) -> Iterator[str]:
    """Serve IAM, STS and the store at `store` at a common URL. Yield the URL."""

    handler = type("Handler", (_Handler,), {"tokens": tokens, "store": store})
    with serve_requests(handler) as address:
        yield f"http://{address}"


class _Handler(ForwardingHandler):
    tokens: NarrowedTokens

    def handle_request(self, body: bytes | None) -> None:
        authorization = self.headers.get("Authorization", "")
        path = unquote(urlsplit(self.path).path)
        try:
            if path.endswith(":generateAccessToken"):
                answer = self.tokens.generate(path, authorization, json.loads(body or b""))
            elif path == "/v1/token":
                form = {k: v[0] for k, v in parse_qs((body or b"").decode()).items()}
                answer = self.tokens.exchange(form)
            else:
                self._judge(body)
                return
        except RequestRefused as refused:
            self.answer(refused.status, json.dumps({"error": str(refused)}).encode())
            return
        self.answer(200, json.dumps(answer).encode())

    def _judge(self, body: bytes | None) -> None:
        """Pass an allowed request on, and answer 403 otherwise."""
        action, bucket, name = asked_action(self.command, self.path, body)
        authorization = self.headers.get("Authorization", "")
        may = self.tokens.allows(authorization, action, bucket, name)
        if may and action == "create" and self.tokens.asks_delete_to_replace:
            may = not self.is_there(bucket, name)
        if may and action == "get":
            # Callers without the right to list the bucket get 403 instead of 404 for missing
            # objects.
            may = self.is_there(bucket, name) or self.tokens.allows(
                authorization, "list", bucket, ""
            )
        if not may:
            error = {"code": 403, "message": f"no storage.objects.{action} access to {name}"}
            self.answer(403, json.dumps({"error": error}).encode())
            return
        self.tokens.used.add((action, bucket, name))
        self.forward(body)
