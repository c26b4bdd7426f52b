"""The arguments that a parser of the command line accepts."""

from argparse import Action, ArgumentParser


def actions_of(parser: ArgumentParser) -> list[Action]:
    """Return the arguments and options of a parser. argparse has no public list."""
    return list(parser._actions)
