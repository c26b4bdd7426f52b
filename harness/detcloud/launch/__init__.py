"""The processes of a trial: its supervisor, the fork server and the trial itself."""
