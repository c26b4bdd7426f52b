"""The package `determined` of a trial on detcloud: its names are detcloud's.

See docs/migrating.md. `environment.determined_compatibility: false` leaves it out.
"""

from detcloud.compatibility.modules import install_modules, module_namespace

install_modules()
globals().update(module_namespace(__name__))
