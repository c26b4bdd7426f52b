"""The modules `determined` and `determined.*`, built from the tables in `names.py`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from detcloud.compatibility.names import FORMER_ROOT, MODULES, ROOT

_SOURCE = """
from detcloud.compatibility.modules import module_namespace, run_program

if __name__ == "__main__":
    run_program({name!r})
else:
    globals().update(module_namespace(__name__))
"""


class UnsupportedName(ImportError):
    """A name of Determined that detcloud does not support. The message names the replacement."""


def install_modules() -> None:
    """Install the import hook that provides the modules of `names.py`, if not yet installed."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def module_namespace(module: str) -> Mapping[str, object]:
    """Return the globals of a module: `__all__` and a `__getattr__`.

    Objects are imported when they are used, because most need torch or other large packages.
    """
    return {"__getattr__": _name_finder(module), "__all__": sorted(MODULES[module].offered)}


def run_program(module: str) -> None:
    """Run detcloud's program in place of Determined's, for example `determined.launch.horovod`.

    Raises SystemExit if the module has no program.
    """
    import runpy

    program = MODULES[module].program
    if program is None:
        raise SystemExit(f"{module} cannot be run as a program")
    runpy.run_module(program, run_name="__main__", alter_sys=True)


class _Finder(MetaPathFinder, InspectLoader):
    """The finder and loader of the modules in `names.py`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in (ROOT, FORMER_ROOT):
            return None
        if fullname not in MODULES:
            if fullname.startswith((f"{ROOT}.", f"{FORMER_ROOT}.")):
                raise ModuleNotFoundError(
                    f"{fullname} is not a module of detcloud's {ROOT}: it belonged to Determined's"
                    " own machinery, or does not exist; docs/migrating.md lists what there is",
                    name=fullname,
                )
            return None
        return ModuleSpec(fullname, self, is_package=self.is_package(fullname))

    def is_package(self, fullname: str) -> bool:
        return any(name.startswith(f"{fullname}.") for name in MODULES)

    def get_source(self, fullname: str) -> str:
        return _SOURCE.format(name=fullname)


def _name_finder(module: str) -> Callable[[str], Any]:
    names = MODULES[module]

    def find_name(name: str) -> Any:
        """Return the object or module with this name.

        Raises UnsupportedName with the replacement if the name is not supported, and AttributeError
        for an unknown name.
        """
        if f"{module}.{name}" in MODULES:
            return importlib.import_module(f"{module}.{name}")
        if name in names.offered:
            place, _, attribute = names.offered[name].partition(":")
            found = importlib.import_module(place)
            return getattr(found, attribute) if attribute else found
        # Tools ask every module for names with an underscore, which must be an AttributeError.
        otherwise = None if name.startswith("_") else names.otherwise
        sentence = names.missing.get(name, otherwise)
        if sentence is not None:
            raise UnsupportedName(f"{module}.{name} is not supported by detcloud: {sentence}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find_name
