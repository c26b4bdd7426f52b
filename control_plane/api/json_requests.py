"""Requests that parse JSON bodies with the gate of json_gate.py."""

from typing import Any

from fastapi import Request
from starlette.types import Receive, Scope

from control_plane.api.errors import BodyError
from control_plane.errors import invalid
from control_plane.json_gate import JsonRefused, parse_agent_body, parse_body


class GatedRequest(Request):
    """A request that parses the JSON body with the module `json_gate`.

    Args:
        has_lines: whether the body has report lines of trials. The values of such a body are not
            checked here, because the agent's route checks each line later.
    """

    def __init__(self, scope: Scope, receive: Receive, *, has_lines: bool = False) -> None:
        super().__init__(scope, receive)
        self._parse = parse_agent_body if has_lines else parse_body

    async def json(self) -> Any:
        """Parse the body as JSON. Later calls return the first call's result.

        Raises:
            BodyError: invalid, if the body is not UTF-8, is nested too deep, has a key twice, or
                has a text or number that cannot be stored. Errors of reading the body pass on.
            json.JSONDecodeError: the body is not JSON.
        """
        if not hasattr(self, "_json"):
            try:
                self._json = self._parse(await self.body())
            except JsonRefused as refused:
                raise BodyError(invalid(refused.place, refused.message)) from None
        return self._json
