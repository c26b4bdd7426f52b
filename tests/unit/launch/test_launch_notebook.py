"""The program of a notebook: options and address of the server, and missing packages."""

import sys

import pytest

from detcloud.launch import notebook
from detcloud.launch.notebook import server_options
from detcloud.shared.launcher_names import unknown_launcher


def idle_options(seconds: int | None, idle_type: str) -> list[str]:
    """Return the options about idle servers and kernels."""
    options = server_options(8888, seconds, idle_type)
    return [option for option in options if "timeout" in option or "cull" in option]


def test_notebook_server_listens_locally_on_the_given_port() -> None:
    options = server_options(8888, None, "kernels_or_terminals")
    assert {"--no-browser", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=8888"} <= {*options}
    assert not any("token" in option for option in options)


def test_idle_type_becomes_jupyter_options() -> None:
    shutdown = "--ServerApp.shutdown_no_activity_timeout=60"
    cull = "--MappingKernelManager.cull_idle_timeout=60"
    terminals = "--TerminalManager.cull_inactive_timeout=60"
    connected = "--MappingKernelManager.cull_connected"
    assert idle_options(None, "activity") == []
    assert idle_options(60, "kernels_or_terminals") == [shutdown]
    assert idle_options(60, "kernel_connections") == [
        shutdown,
        cull,
        f"{connected}=False",
        terminals,
    ]
    assert idle_options(60, "activity") == [shutdown, cull, f"{connected}=True", terminals]


def test_missing_jupyterlab_has_an_installation_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Python finds no module whose entry is None.
    monkeypatch.setitem(sys.modules, "jupyterlab", None)
    assert notebook.main([]) == 127
    assert (
        f"install it with `{sys.executable} -m pip install jupyterlab`" in capsys.readouterr().err
    )


def test_notebook_is_a_known_launcher() -> None:
    assert unknown_launcher(["python", "-m", "detcloud.launch.notebook"]) is None
