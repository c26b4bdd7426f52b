"""The routes of the API: a module for each noun, with a `router` of guarded routes.

The first request for a noun, or for the OpenAPI document, imports the noun's module. Importing all
modules took two fifths of the start of a function (bench/cold_starts.py and
bench/gcp_cold_starts.py).
"""

from collections.abc import Mapping
from importlib import import_module

from fastapi.routing import APIRouter
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from control_plane.api.route_guards import API_PATH

# The modules in the order of the OpenAPI document, each with the first parts of the routes' paths.
NOUNS: Mapping[str, frozenset[str]] = {
    "health": frozenset({"health", "openapi.json"}),
    "cluster": frozenset({"cluster", "whoami"}),
    "model_code": frozenset({"model-code"}),
    "objects": frozenset({"objects"}),
    "experiments": frozenset({"experiments", "experiment-groups"}),
    "experiment_views": frozenset({"experiment-views"}),
    "search_methods": frozenset({"experiments"}),
    "history": frozenset({"experiments"}),
    "experiment_code": frozenset({"experiments"}),
    "rungs": frozenset({"experiments"}),
    "results": frozenset({"experiments"}),
    "experiment_replacements": frozenset({"experiments"}),
    "families": frozenset({"experiments"}),
    "search_previews": frozenset({"search-previews"}),
    "retention": frozenset({"retention", "experiments"}),
    "trials": frozenset({"trials"}),
    "metrics": frozenset({"trials", "experiments", "experiment-curves"}),
    "logs": frozenset({"trials", "experiments"}),
    "checkpoints": frozenset({"checkpoints", "experiments"}),
    "checkpoint_uploads": frozenset({"checkpoint-uploads"}),
    "agents": frozenset({"agents"}),
    "agent_code": frozenset({"agent-code", "agent-installer"}),
    "agent_credentials": frozenset({"agents"}),
    "package_archives": frozenset({"agents"}),
    "instances": frozenset({"instances"}),
    "resource_pools": frozenset({"resource-pools", "cluster"}),
    "jobs": frozenset({"jobs"}),
    "cost": frozenset({"cost", "usage"}),
    "alarms": frozenset({"alarms"}),
    "monitoring": frozenset({"metrics"}),
    "projects": frozenset({"projects", "workspaces"}),
    "models": frozenset({"models"}),
    "templates": frozenset({"templates"}),
    "agent_users": frozenset({"agent-users"}),
    "schedules": frozenset({"schedules"}),
    "reports": frozenset({"reports"}),
    "tokens": frozenset({"tokens"}),
    "webhooks": frozenset({"webhooks"}),
    "tunnels": frozenset({"tunnels", "agents"}),
    "sessions": frozenset({"sessions", "sign-in-codes"}),
    # The page's paths are not below API_PATH, so that the first part of each is empty.
    "page": frozenset({""}),
}

# For each first part of a path, the nouns that may have a route for the path, in the order above.
_NOUNS_OF = {
    beginning: tuple(noun for noun, others in NOUNS.items() if beginning in others)
    for beginning in frozenset[str]().union(*NOUNS.values())
}


def noun_routes(noun: str) -> list[BaseRoute]:
    """Import the module of a noun of NOUNS, and return the routes."""
    router: APIRouter = import_module(f"{__name__}.{noun}").router
    return router.routes


def all_routes() -> list[BaseRoute]:
    """Import the modules of all nouns, and return the routes in the order of NOUNS."""
    return [route for noun in NOUNS for route in noun_routes(noun)]


class RouteLoader:
    """ASGI middleware that adds routes to `router` before the first request that may need them.

    The routes of each noun that may have a route for the request's path are added once. The wrapped
    application `app` then finds the same route as if all routes were present.
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
                # `include_router` would wrap or copy the routes, and tests need the same objects.
                self._router.routes.extend(noun_routes(noun))
                self._loaded.add(noun)
