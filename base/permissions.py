"""Modes of new files and directories, derived from the directory that contains them."""

from __future__ import annotations

from stat import S_ISGID


def mode_within(directory: int, is_directory: bool = False) -> int:
    """Return the mode of a new file or directory in a directory of this mode, whatever the umask is.

    The group gets access only where it was granted on purpose: the directory excludes all other users, or has
    setgid. The default of `mkdir`, which all users may read, grants nothing. Other users never get access.

    >>> oct(mode_within(0o2750)), oct(mode_within(0o750, True)), oct(mode_within(0o755))
    ('0o640', '0o750', '0o600')
    """
    for_group = bool(directory & S_ISGID) or not directory & 0o007
    mode = directory & (0o2770 if for_group else 0o700)
    return mode | 0o700 if is_directory else mode & 0o660 | 0o600
