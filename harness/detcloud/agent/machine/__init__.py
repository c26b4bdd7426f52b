"""The installation, upgrades and removal of an agent on a machine."""
