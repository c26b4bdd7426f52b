"""The processes of a trial: supervisor, fork server, launchers and the training process."""
