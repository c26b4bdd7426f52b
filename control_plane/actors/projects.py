"""Workspaces and projects: the names that experiments are grouped by, and what such a name may be.

They are names alone: a project is there as long as an experiment is in it, and nobody makes one.
"""

UNCATEGORIZED = "Uncategorized"
"""The workspace, and the project, of an experiment that names none."""
NAME_CHARACTERS_MAX = 128
# A list of names has commas between them, and `WORKSPACE/PROJECT` a slash.
_FORBIDDEN = ",/"


def find_name_problem(name: str) -> str:
    """Return what is wrong with a name of a workspace or project, "" if nothing is."""
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
