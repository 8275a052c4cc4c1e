"""The one exception that a person at the command line sees as a line of text instead of a traceback."""

from __future__ import annotations


class UserError(Exception):
    """Something outside the program is not as it must be: a setting, a file, a missing tool.

    The message says what was wrong, where, and what to do. The command line prints it and exits with code 2.
    """
