"""Placements of a cluster, read from what its nodes say in `CLUSTER NODES`. Pure.

Each node has a view of its own: which master serves which slots, with the config epoch by which it got
them. Views are merged slot by slot, and the highest epoch wins. Any view may be old: it only chooses where
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
        epoch: the config epoch of a master, by which it claims `slots`.
    """

    id: str
    address: Address
    is_master: bool
    epoch: int
    slots: tuple[tuple[int, int], ...]  # [start, end)


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
        node_id, place, flags, _, _, _, epoch, _, *slots = line.split(" ")
        announced, _, hostname = place.partition(",")
        host, _, port = announced.partition("@")[0].rpartition(":")
        says = set(flags.split(","))
        if not port.isdigit() or says & {"handshake", "noaddr"}:
            continue
        host = hostname.partition(",")[0] or host or asked[0]
        ranges = tuple(_range(part) for part in slots if part[:1].isdigit())
        nodes.append(Node(node_id, (host, int(port)), "master" in says, int(epoch), ranges))
    return nodes


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    start, end = int(first), int(last or first) + 1
    if not 0 <= start < end <= SLOTS:
        raise ValueError(f"slots {text} are not within [0, {SLOTS})")
    return start, end


def merge_views(views: Iterable[Iterable[Node]], shards: dict[str, int]) -> ClusterMap:
    """Return the placement that the newest views give.

    Args:
        views: what nodes said, each a list of all nodes.
        shards: the numbers of shards by node id; nodes that are new are entered.
    """
    owners, epochs = np.full(SLOTS, UNSERVED), np.full(SLOTS, -1)
    nodes: dict[int, Node] = {}
    members = set()
    for node in (node for view in views for node in view):
        members.add(node.id)
        if not node.is_master:
            continue
        shard = shards.setdefault(node.id, len(shards) + 1)
        if shard not in nodes or nodes[shard].epoch <= node.epoch:
            nodes[shard] = node
        for start, end in node.slots:
            newer = epochs[start:end] < node.epoch
            owners[start:end][newer] = shard
            epochs[start:end][newer] = node.epoch
    changes = np.flatnonzero(np.diff(owners)) + 1
    ranges = pairwise([0, *changes.tolist(), SLOTS])
    tablets = (Tablet(number, *each, int(owners[each[0]]), 0) for number, each in enumerate(ranges, start=1))
    return ClusterMap(Placement.of(tablets), nodes, frozenset(members))
