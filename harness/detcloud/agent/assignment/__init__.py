"""A trial to be started: its code, environment, mounts and startup hook."""
