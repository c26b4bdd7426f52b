"""Whether this server can suggest: Optuna is an extra."""

from importlib.util import find_spec

INSTALL = "pip install 'detcloud[optuna]'"
LACKING = "searcher bayesian needs Optuna, which is not installed on this server"


def lacking(searcher: str) -> str:
    """Why a search of that name cannot run here and what to do about it; "" if it can."""
    if searcher != "bayesian" or find_spec("optuna") is not None:
        return ""
    return f"{LACKING}: {INSTALL}"
