"""Whether we are up, and what we can be asked."""

from typing import Any, cast

from fastapi import Request
from fastapi.openapi.utils import get_openapi

from control_plane.api.guarded import PEOPLE, guarded_router, needs, open_to_all

router = guarded_router("health")


@router.get("/health")
@open_to_all
async def health() -> dict[str, str]:
    """Answers while the process serves; it looks at nothing else, so that it costs nothing."""
    return {"status": "ok"}


@router.get("/openapi.json", include_in_schema=False)
@needs(*PEOPLE)
def openapi(request: Request) -> dict[str, Any]:
    """The description of every route, made once per application."""
    app = request.app
    if app.openapi_schema is None:
        for route in app.routes:
            route.complete()
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
        schemes["bearer"] = {"type": "http", "scheme": "bearer"}
        app.openapi_schema = document
    return cast(dict[str, Any], app.openapi_schema)
