"""The messages between actors, and the commands of the API.

Their names are facts in the past tense.
"""
