"""The names by which a server may be asked.

Any web page can point a name of its own at 127.0.0.1 (DNS rebinding); the browser then lets it read what is
answered there. Its requests say that name in `Host`, so only names that are this server's are answered. The
port is not compared: whoever forwards one (`ssh -L`) comes by another, and no page has the name `localhost`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import ip_address

_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9_.-]+))(?::[0-9]{1,5})?")
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(name: str) -> bool:
    """True for an address, or the name, of this machine that others cannot reach."""
    return name.lower() == "localhost" or (_is_address(name) and ip_address(name).is_loopback)


def answered_names(host: str, address: str, own: tuple[str, ...]) -> Callable[[str], bool]:
    """The test of a `Host` header.

    Args:
        host: what the server was told to listen at.
        address: where that led.
        own: the names of this machine; they and any address count if it listens beyond loopback, since
            an address is nobody's name.
    """
    names = {*LOOPBACK, host.lower(), address.lower()}
    beyond = not is_loopback(address)
    if beyond:
        names |= {name.lower() for name in own}

    def answers(header: str) -> bool:
        match = _HOST.fullmatch(header)
        name = ((match[1] or match[2]) if match else "").lower().removesuffix(".")
        return name in names or (beyond and _is_address(name))

    return answers
