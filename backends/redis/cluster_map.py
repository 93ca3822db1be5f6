"""Placements of a cluster, read from what its nodes say in `CLUSTER NODES`. Pure.

Each node has a view of its own of which master serves which slots. Any view may be old: it only chooses where
a page is read, and the server that is asked refuses slots that it does not serve.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from elasticscan.backends.redis.names import SLOTS
from elasticscan.topology import Placement, Tablet

Address = tuple[str, int]

UNSERVED = 0  # the shard of slots that no node serves


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a cluster, as another one describes it.

    Attributes:
        id: 40 hexadecimal digits, for the life of the node.
        slots: what a master serves, as ranges [start, end).
    """

    id: str
    address: Address
    is_master: bool
    slots: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """A placement, with the nodes that its shards are.

    Attributes:
        nodes: the masters by the number of their shard.
        members: the ids of all nodes, replicas included.
    """

    placement: Placement
    nodes: Mapping[int, Node]
    members: frozenset[str]

    @property
    def shard_names(self) -> dict[int, str]:
        return {shard: "{}:{}".format(*node.address) for shard, node in self.nodes.items()}


def is_same_cluster(members: Collection[str], before: Collection[str]) -> bool:
    """Return whether a cluster has at least half of the nodes that it had before."""
    return 2 * len(set(members) & set(before)) >= len(before)


def read_nodes(text: str, asked: Address) -> list[Node]:
    """Read the answer of `CLUSTER NODES` from the node that was asked at an address.

    A line is `id ip:port@bus[,host] flags master ping pong epoch link slot slot …`; a slot is a number, a
    range, or in brackets one that is being moved, which its owner still serves.

    Raises:
        ValueError: it is no such answer.
    """
    nodes = []
    for line in text.splitlines():
        if not line:
            continue
        node_id, place, flags, _, _, _, _, _, *slots = line.split(" ")
        announced, _, hostname = place.partition(",")
        host, _, port = announced.partition("@")[0].rpartition(":")
        says = set(flags.split(","))
        if not port.isdigit() or says & {"handshake", "noaddr"}:
            continue
        host = hostname.partition(",")[0] or host or asked[0]
        ranges = tuple(_range(part) for part in slots if part[:1].isdigit())
        nodes.append(Node(node_id, (host, int(port)), "master" in says, ranges))
    return nodes


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    start, end = int(first), int(last or first) + 1
    if not 0 <= start < end <= SLOTS:
        raise ValueError(f"slots {text} are not within [0, {SLOTS})")
    return start, end


def map_of(view: Iterable[Node], shards: dict[str, int]) -> ClusterMap:
    """Return the placement by what one node says of all.

    Args:
        view: the nodes.
        shards: the numbers of shards by node id; masters that are new are entered.
    """
    owners, masters, members = np.full(SLOTS, UNSERVED), dict[int, Node](), set[str]()
    for node in view:
        members.add(node.id)
        if node.is_master:
            shard = shards.setdefault(node.id, len(shards) + 1)
            masters[shard] = node
            for start, end in node.slots:
                owners[start:end] = shard
    changes = np.flatnonzero(np.diff(owners)) + 1
    ranges = pairwise([0, *changes.tolist(), SLOTS])
    tablets = (Tablet(number, *each, int(owners[each[0]]), 0) for number, each in enumerate(ranges, start=1))
    return ClusterMap(Placement.of(tablets), masters, frozenset(members))
