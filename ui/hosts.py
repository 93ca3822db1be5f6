"""The names by which a server may be asked.

Any web page can point a name of its own at 127.0.0.1 (DNS rebinding); the browser then lets it read what is
answered there. Its requests say that name in `Host`, so only names that are this server's are answered. The
port is not compared: a forwarded one (`ssh -L`) differs, and no foreign page has the name `localhost`.
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
    """Return whether a name or an address is this machine's loopback."""
    return name.lower() == "localhost" or (_is_address(name) and ip_address(name).is_loopback)


def answered_names(host: str, address: str, own: tuple[str, ...]) -> Callable[[str], bool]:
    """Return the test of a `Host` header.

    Args:
        host: the name or address that the server was asked to listen at.
        address: the address that it resolved to.
        own: the names of this machine; they and any address count if it listens beyond loopback, since
            an attacker cannot own an address as a name.
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
