"""Modules of Determined's names: `determined` and what is below it, made from `names.py`."""

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
    """A name of Determined that detcloud does not have; the message says what to write instead."""


def install_modules() -> None:
    """Install the import hook that provides the modules of `names.py`, once in a process."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def module_namespace(module: str) -> Mapping[str, object]:
    """The globals of one of these modules: names are looked up when they are used, since most of
    them need torch or more.
    """
    return {"__getattr__": _name_finder(module), "__all__": sorted(MODULES[module].offered)}


def run_program(module: str) -> None:
    """Run detcloud's program in the place of Determined's, for `python -m determined.launch.x`."""
    import runpy

    program = MODULES[module].program
    if program is None:
        raise SystemExit(f"{module} cannot be run as a program")
    runpy.run_module(program, run_name="__main__", alter_sys=True)


class _Finder(MetaPathFinder, InspectLoader):
    """Finds and loads the modules of `names.py` below the root."""

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
        """The object of a name; ImportError with a sentence for one that is not supported."""
        if f"{module}.{name}" in MODULES:
            return importlib.import_module(f"{module}.{name}")
        if name in names.offered:
            place, _, attribute = names.offered[name].partition(":")
            found = importlib.import_module(place)
            return getattr(found, attribute) if attribute else found
        # Tools look for names with an underscore in any module.
        otherwise = None if name.startswith("_") else names.otherwise
        sentence = names.missing.get(name, otherwise)
        if sentence is not None:
            raise UnsupportedName(f"{module}.{name} is not supported by detcloud: {sentence}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find_name
