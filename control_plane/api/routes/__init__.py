"""The routes, one module per noun; each has a `router` of guarded routes.

A noun's routes are imported by the first request for one of them, or when the
API is described: all of them, with what answers them, took two fifths of the start of a function
(bench/cold_starts.py and bench/gcp_cold_starts.py).
"""

from collections.abc import Mapping
from importlib import import_module

from fastapi.routing import APIRouter
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from control_plane.api.route_guards import API_PATH

# The modules in the order of the description, and how the paths of their routes begin.
NOUNS: Mapping[str, frozenset[str]] = {
    "health": frozenset({"health", "openapi.json"}),
    "cluster": frozenset({"cluster", "whoami"}),
    "model_code": frozenset({"model-code"}),
    "objects": frozenset({"objects"}),
    "experiments": frozenset({"experiments"}),
    "search_methods": frozenset({"experiments"}),
    "history": frozenset({"experiments"}),
    "experiment_code": frozenset({"experiments"}),
    "rungs": frozenset({"experiments"}),
    "search_previews": frozenset({"search-previews"}),
    "trials": frozenset({"trials"}),
    "metrics": frozenset({"trials", "experiments"}),
    "logs": frozenset({"trials"}),
    "checkpoints": frozenset({"checkpoints", "experiments"}),
    "checkpoint_uploads": frozenset({"checkpoint-uploads"}),
    "agents": frozenset({"agents"}),
    "agent_credentials": frozenset({"agents"}),
    "instances": frozenset({"instances"}),
    "resource_pools": frozenset({"resource-pools", "cluster"}),
    "jobs": frozenset({"jobs"}),
    "cost": frozenset({"cost"}),
    "projects": frozenset({"projects", "workspaces"}),
    "models": frozenset({"models"}),
    "templates": frozenset({"templates"}),
    "tokens": frozenset({"tokens"}),
    "sessions": frozenset({"sessions", "sign-in-codes"}),
    # Its paths are outside of the API's.
    "page": frozenset({""}),
}

# The nouns that paths with a beginning may belong to, in the same order.
_NOUNS_OF = {
    beginning: tuple(noun for noun, others in NOUNS.items() if beginning in others)
    for beginning in frozenset[str]().union(*NOUNS.values())
}


def noun_routes(noun: str) -> list[BaseRoute]:
    """Return the routes of a noun, one of NOUNS."""
    router: APIRouter = import_module(f"{__name__}.{noun}").router
    return router.routes


def all_routes() -> list[BaseRoute]:
    """Return the routes of all nouns."""
    return [route for noun in NOUNS for route in noun_routes(noun)]


class RouteLoader:
    """ASGI middleware that adds the routes of the nouns that a request's path may belong to, so
    that the application which it is around finds the same route as if all were there.
    """

    def __init__(self, app: ASGIApp, router: APIRouter) -> None:
        self._app = app
        self._router = router
        self._loaded = set[str]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._load(scope["path"])
        await self._app(scope, receive, send)

    def _load(self, path: str) -> None:
        beginning = path.removeprefix(f"{API_PATH}/").partition("/")[0]
        for noun in _NOUNS_OF.get(beginning, ()):
            if noun not in self._loaded:
                # Not include_router: it would wrap or copy the routes, and tests walk these very
                # objects.
                self._router.routes.extend(noun_routes(noun))
                self._loaded.add(noun)
