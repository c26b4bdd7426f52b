"""The application: the routes of all nouns behind one boundary."""

from functools import partial

from fastapi import FastAPI

from control_plane.api import errors
from control_plane.api.boundary import RequestBoundary
from control_plane.api.page_origins import PageOrigins
from control_plane.api.request_bounds import RequestBounds
from control_plane.api.routes import RouteLoader
from control_plane.services import Services


def create_app(services: Services) -> FastAPI:
    """Create the ASGI application over `services`.

    The application starts no threads and needs no lifespan events, so that a function host that
    freezes between two requests can run it as well as a server.
    """
    app = FastAPI(
        title="detcloud",
        version="1",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.services = services
    app.state.request_bounds = RequestBounds()
    errors.install_handlers(app)
    app.add_middleware(RouteLoader, router=app.router)
    app.add_middleware(PageOrigins, read_allowed=partial(_read_page_origins, services))
    app.add_middleware(RequestBoundary, hosts=services.hosts)
    return app


def _read_page_origins(services: Services) -> frozenset[str]:
    # Imported by the first page elsewhere that asks: with it come the models of configurations
    # (bench/cold_starts.py).
    from control_plane.queries.cluster_configuration import page_origins

    return page_origins(services.table)
