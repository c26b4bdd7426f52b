"""A check of the optional package Optuna, which suggestions require."""

from importlib.util import find_spec

INSTALL_COMMAND = "pip install 'detcloud[optuna]'"
MISSING_OPTUNA = "searcher bayesian needs Optuna, which is not installed on this server"


def missing_package_reason(searcher: str) -> str:
    """Return a message if a searcher needs Optuna and Optuna is not installed on this server.

    The message contains the command to install Optuna. Return "" if the searcher can run.
    """
    if searcher != "bayesian" or find_spec("optuna") is not None:
        return ""
    return f"{MISSING_OPTUNA}: {INSTALL_COMMAND}"
