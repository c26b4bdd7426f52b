"""The routes, one module per noun; each has a `router` of guarded routes, listed here."""

from control_plane.api.routes import health, model_code, objects

ROUTERS = (health.router, model_code.router, objects.router)
