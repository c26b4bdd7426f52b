"""The check of a submitted experiment's checkpoint store."""

from importlib.util import find_spec

from control_plane.checkpoint_stores.registry import store_type
from control_plane.config.experiment import ExperimentConfig
from control_plane.errors import invalid
from control_plane.findings import path_text
from control_plane.services import Services


def check_storage(services: Services, config: ExperimentConfig) -> None:
    """Check that trials and cluster can use the configured checkpoint store.

    A configuration without a store passes, because the cluster's own store is used. No request is
    sent to the store.

    Raises:
        RequestError: invalid, if a package is missing, the cluster must not call the store's
            endpoint, or the cluster cannot issue credentials for the store. Also if no store is
            configured and the cluster has no usable store.
    """
    options = config.checkpoint_storage
    if options.type is None:
        if services.checkpoint_remedy:
            text = "is required, because this cluster has no common place for checkpoints"
            raise invalid("checkpoint_storage.type", text, services.checkpoint_remedy)
        return
    spec = store_type(options.type)
    package = spec.required_package
    if package is not None and not _is_installed(package.module):
        text = f"{spec.name} needs a package that is not installed on this cluster"
        hint = f"pip install '{package.requirement}' there"
        raise invalid("checkpoint_storage.type", text, hint)
    if problem := services.endpoints(options):
        path = path_text(("checkpoint_storage", *problem.loc))
        raise invalid(path, problem.message, problem.hint)
    if services.credential_issuer is None:
        return
    if problem := spec.find_credential_problem(options):
        raise invalid(path_text(("checkpoint_storage", *problem.loc)), problem.message)


def _is_installed(module: str) -> bool:
    """Return whether a module exists, without importing the module.

    A parent package is imported. Return False also if a parent package does not exist.
    """
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
