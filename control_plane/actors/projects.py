"""Workspaces and projects: the names by which experiments are grouped, and the rules for names.

A project is a name only. It exists while an experiment has the name, and nobody creates it.
"""

UNCATEGORIZED = "Uncategorized"
"""The workspace, and the project, of an experiment whose configuration names none."""
NAME_CHARACTERS_MAX = 128
# Commas separate names in lists, and a slash separates the names in `WORKSPACE/PROJECT`.
_FORBIDDEN = ",/"


def find_name_problem(name: str) -> str:
    """Return why a name of a workspace or project is invalid, as the predicate of a sentence.

    Return "" for a valid name.
    """
    if not name:
        return "is empty"
    if len(name) > NAME_CHARACTERS_MAX:
        return f"has {len(name):,} characters; at most {NAME_CHARACTERS_MAX} are allowed"
    if name != name.strip():
        return "must not begin or end with a space"
    for character in name:
        if character in _FORBIDDEN or not character.isprintable():
            return f"holds {character!a}, which no such name has"
    return ""
