"""The messages between actors and the commands of the API, named as facts in the past tense."""
