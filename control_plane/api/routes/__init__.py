"""The routes, one module per noun; each has a `router` of guarded routes, listed here."""

from control_plane.api.routes import (
    agents,
    checkpoints,
    cluster,
    experiments,
    health,
    history,
    jobs,
    logs,
    metrics,
    model_code,
    objects,
    resource_pools,
    search_methods,
    templates,
    tokens,
    trials,
)

ROUTERS = (
    health.router,
    cluster.router,
    model_code.router,
    objects.router,
    experiments.router,
    search_methods.router,
    history.router,
    trials.router,
    metrics.router,
    logs.router,
    checkpoints.router,
    agents.router,
    resource_pools.router,
    jobs.router,
    templates.router,
    tokens.router,
)
