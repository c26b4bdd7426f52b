"""The routes, one module per noun; each has a `router` of guarded routes, listed here."""

from control_plane.api.routes import (
    agents,
    checkpoints,
    cluster,
    experiments,
    health,
    model_code,
    objects,
    trials,
)

ROUTERS = (
    health.router,
    cluster.router,
    model_code.router,
    objects.router,
    experiments.router,
    trials.router,
    checkpoints.router,
    agents.router,
)
