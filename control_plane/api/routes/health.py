"""Routes that report whether the API serves requests, and that describe the API."""

from typing import Any, cast

from fastapi import Request

from control_plane.access.principals import USER_ROLES
from control_plane.api.openapi import openapi_document
from control_plane.api.route_guards import allow_anyone, guarded_router, require_role
from control_plane.api.routes import all_routes

router = guarded_router("health")


@router.get("/health")
@allow_anyone
async def health() -> dict[str, str]:
    """Report that the API serves requests. Nothing else is checked."""
    return {"status": "ok"}


@router.get("/openapi.json", include_in_schema=False)
@require_role(*USER_ROLES)
def openapi(request: Request) -> dict[str, Any]:
    """Return the OpenAPI document of all routes. The application builds the document once."""
    app = request.app
    if app.openapi_schema is None:
        app.openapi_schema = openapi_document(app.title, app.version, all_routes())
    return cast(dict[str, Any], app.openapi_schema)
