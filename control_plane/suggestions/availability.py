"""The check that this server can make suggestions, which need Optuna, an optional package."""

from importlib.util import find_spec

INSTALL_COMMAND = "pip install 'detcloud[optuna]'"
MISSING_OPTUNA = "searcher bayesian needs Optuna, which is not installed on this server"


def missing_package_reason(searcher: str) -> str:
    """The reason why a searcher cannot run on this server, and the remedy; "" if it can."""
    if searcher != "bayesian" or find_spec("optuna") is not None:
        return ""
    return f"{MISSING_OPTUNA}: {INSTALL_COMMAND}"
