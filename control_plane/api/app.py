"""The ASGI application of the API: all routes behind the request boundary."""

from functools import partial

from fastapi import FastAPI

from control_plane.api import errors
from control_plane.api.boundary import RequestBoundary
from control_plane.api.page_origins import PageOrigins
from control_plane.api.request_bounds import RequestBounds
from control_plane.api.routes import RouteLoader
from control_plane.api.sign_in_limits import SignInLimits
from control_plane.services import Services


def create_app(services: Services, bounds: RequestBounds | None = None) -> FastAPI:
    """Create the ASGI application that answers requests with `services`.

    The application starts no threads and needs no lifespan events. A function host that freezes
    between requests can therefore run the application. The first request for a noun loads the
    noun's routes.

    Args:
        services: the dependencies of all requests.
        bounds: the limits on the application's requests. None for the default limits.
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
    app.state.request_bounds = bounds or RequestBounds()
    app.state.sign_in_limits = SignInLimits()
    errors.install_handlers(app)
    app.add_middleware(RouteLoader, router=app.router)
    app.add_middleware(PageOrigins, read_allowed=partial(_read_page_origins, services))
    app.add_middleware(RequestBoundary, hosts=services.hosts)
    return app


def _read_page_origins(services: Services) -> frozenset[str]:
    # Imported by the first request from a page of another origin: the module imports the models of
    # configurations, which would lengthen every cold start (bench/cold_starts.py).
    from control_plane.queries.cluster_configuration import page_origins

    return page_origins(services.table)
