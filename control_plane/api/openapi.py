"""The OpenAPI document of the API."""

from collections.abc import Iterable
from typing import Any

from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from control_plane.api.route_guards import GuardedRoute


def openapi_document(title: str, version: str, routes: Iterable[BaseRoute]) -> dict[str, Any]:
    """Return the OpenAPI document that describes the routes.

    Complete each guarded route that is not complete. `title` and `version` are the API's.
    """
    listed = list(routes)
    for route in listed:
        if isinstance(route, GuardedRoute):
            route.complete()
    document = get_openapi(title=title, version=version, routes=listed)
    schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
    schemes["bearer"] = {"type": "http", "scheme": "bearer"}
    return document
