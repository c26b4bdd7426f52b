"""The life of an agent on a machine of one's own: installation, upgrades and removal."""
