"""The package `determined` in a trial on detcloud, with names that detcloud implements.

See docs/migrating.md. `environment.determined_compatibility: false` disables the package.
"""

from detcloud.compatibility.modules import install_modules, module_namespace

install_modules()
globals().update(module_namespace(__name__))
