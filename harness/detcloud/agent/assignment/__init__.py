"""A trial to be started: model code, environment variables, mounts and startup hook."""
