"""Connections to the nodes of a cluster, which send commands and read answers. All I/O is here.

A connection that fails, or takes longer than `timeout`, is closed, and the slots of its requests count as
refused. The next pass reads the placement again, and asks the masters that serve these slots now.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from hiredis import pack_command
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.connection import Connection, ConnectionPool, SSLConnection
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as DisconnectedError

from elasticscan.backends.redis.cluster_map import Address, ClusterMap, is_same_cluster, parse_map
from elasticscan.backends.redis.options import ClusterOptions
from elasticscan.backends.redis.pages import unexpected
from elasticscan.base.errors import ShardUnavailable
from elasticscan.topology import SlotSet

UNREACHABLE = (RedisError, OSError)


class Connections:
    """Connections to the nodes of one cluster. Threads may share them; a forked child connects again."""

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options
        self._pools: dict[Address, ConnectionPool] = {}
        self._how: dict[str, Any] = {
            "connection_class": SSLConnection if options.tls else Connection,
            "username": options.user,
            "password": options.password,
            "socket_timeout": options.timeout,
            "socket_connect_timeout": options.timeout,
            "protocol": 2,
        }
        if options.tls:
            files = options.tls_ca_file, options.tls_cert_file, options.tls_key_file
            self._how |= zip(("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"), files, strict=True)
        self._lock = threading.Lock()
        self._shards: dict[str, int] = {}
        self._known: tuple[Address, ...] = ()
        self.map: ClusterMap = self.read_map()
        self.check_masters()

    def close(self) -> None:
        """Close all connections; a later request opens new ones."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.disconnect()

    def exchange(self, address: Address, commands: Sequence[tuple[bytes, ...]]) -> list[Any]:
        """Send commands to a node and return their answers, which may be errors.

        Raises:
            OSError, RedisError: the node cannot be reached, or did not answer in time.
        """
        if not commands:
            return []
        if (pool := self._pools.get(address)) is None:
            host, port = self.options.address_map.get(address, address)
            pool = self._pools.setdefault(address, ConnectionPool(host=host, port=port, **self._how))
        connection: Any = pool.get_connection()
        try:
            packed = map(pack_command, commands)  # type: ignore[arg-type]  # the stub has one-tuples
            connection.send_packed_command([b"".join(packed)])
            return _read_answers(connection._parser, len(commands))
        except BaseException:
            connection.disconnect()  # so that a later request does not read the remaining answers
            raise
        finally:
            pool.release(connection)

    def try_exchange(self, address: Address, commands: Sequence[tuple[bytes, ...]]) -> list[Any]:
        """Return the answers as `exchange` does. If the node cannot be reached, each answer is the error."""
        try:
            return self.exchange(address, commands)
        except UNREACHABLE as error:
            return [error] * len(commands)

    def count_keys(self, address: Address, slots: SlotSet) -> dict[int, int]:
        """Count the keys of all tables in each slot at a node; a node that is down has none."""
        asked = [slot for start, end in slots for slot in range(start, end)]
        counts = self.try_exchange(
            address, [(b"CLUSTER", b"COUNTKEYSINSLOT", b"%d" % slot) for slot in asked]
        )
        return {slot: n for slot, n in zip(asked, counts, strict=True) if isinstance(n, int) and n}

    def read_map(self) -> ClusterMap:
        """Read the placement from a node, each time from another node, because a view may be old.

        A node that left the cluster may belong to another cluster now, at its old address. So nodes of the
        known cluster are preferred. Each scan also checks that its cluster is the one with which it began.

        Raises:
            ShardUnavailable, InvalidOption: no node answers, or a node refuses, or is in no cluster.
        """
        asked = tuple(dict.fromkeys((*self._known, *self.options.seeds)))
        found: ClusterMap | None = None
        failed = Exception()
        for address in asked:
            try:
                (answer,) = self.exchange(address, [(b"CLUSTER", b"NODES")])
                if isinstance(answer, Exception):
                    raise answer
                with self._lock:
                    seen = parse_map(answer.decode(), address, self._shards)
            except (AuthenticationError, ResponseError) as error:
                raise unexpected(error) from None
            except (*UNREACHABLE, ValueError) as error:
                failed = error
                continue
            if not self._known or is_same_cluster(seen.members, self.map.members):
                found = seen
                break
            found = found or seen
        if found is None:
            raise _unreachable(asked, failed)
        with self._lock:
            self.map, masters = found, found.addresses.values()
            turn = (*asked[asked.index(address) + 1 :], *masters)
            self._known = tuple(dict.fromkeys(each for each in turn if each in masters))
            return self.map

    def check_masters(self) -> None:
        """Raise `ShardUnavailable` if no master answers at the address that it announces."""
        addresses = self.map.addresses.values()
        for address in addresses:
            (answer,) = self.try_exchange(address, [(b"PING",)])
            if not isinstance(answer, (OSError, DisconnectedError)):
                return
        raise _unreachable(addresses, answer)


def _read_answers(parser: Any, count: int) -> list[Any]:
    """Read answers in bulk, because the client library calls ten Python functions for each answer."""
    answers: list[Any] = []
    while len(answers) < count:
        answers.extend(iter(partial(parser._reader.gets, False), NOT_ENOUGH_DATA))
        if len(answers) < count:
            parser.read_from_socket()
    return answers


def _unreachable(asked: Iterable[Address], error: Exception) -> ShardUnavailable:
    places = ", ".join("{}:{}".format(*address) for address in asked)
    return ShardUnavailable(f"no node of the cluster answers at {places}: {error}; check url and addressMap")
