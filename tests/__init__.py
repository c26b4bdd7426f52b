"""The tests. A package of that name that another project installs is not to be found instead."""
