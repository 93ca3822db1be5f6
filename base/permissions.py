"""Modes of files and directories: what is made is for whom the directory around it was opened on purpose."""

from __future__ import annotations

from stat import S_ISGID


def mode_within(directory: int, is_directory: bool = False) -> int:
    """The mode of what is made in a directory of this mode, whatever the umask is.

    A group may use it where a directory lets a group in and nobody else, or hands its group on (setgid):
    somebody chose that. `mkdir` alone makes directories that all may read, so that says nothing, and all
    others are never let in.

    >>> oct(mode_within(0o2750)), oct(mode_within(0o750, True)), oct(mode_within(0o755))
    ('0o640', '0o750', '0o600')
    """
    for_group = bool(directory & S_ISGID) or not directory & 0o007
    mode = directory & (0o2770 if for_group else 0o700)
    return mode | 0o700 if is_directory else mode & 0o660 | 0o600
