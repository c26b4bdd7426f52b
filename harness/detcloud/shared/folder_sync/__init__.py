"""The synchronisation of a folder of the user's machine with a folder of a trial.

`plan` decides, `folder` reads and writes one of the folders, and `frames` are the messages between
the two machines.
"""
