"""Placements of a cluster, parsed from the answers of its nodes to `CLUSTER NODES`. Pure.

Each node has its own view of the master of each slot. A view may be old, which is safe: it only chooses where
a page is read, and a server refuses slots that it does not serve.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from elasticscan.backends.redis.names import SLOTS
from elasticscan.topology import Placement, Tablet

Address = tuple[str, int]

UNSERVED = 0  # the shard of slots that no node serves


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """A placement, with the nodes that are its shards.

    Attributes:
        addresses, ids: of the masters, by the number of their shard; a node's id never changes.
        members: the ids of all nodes, replicas included.
    """

    placement: Placement
    addresses: Mapping[int, Address]
    ids: Mapping[int, str]
    members: frozenset[str]

    @property
    def shard_names(self) -> dict[int, str]:
        return {shard: "{}:{}".format(*address) for shard, address in self.addresses.items()}


def is_same_cluster(members: Collection[str], before: Collection[str]) -> bool:
    """Return whether a cluster has at least half of the nodes that it had before."""
    return 2 * len(set(members) & set(before)) >= len(before)


def parse_map(text: str, asked: Address, shards: dict[str, int]) -> ClusterMap:
    """Return the placement in a node's answer to `CLUSTER NODES`.

    A line is `id ip:port@bus[,host] flags master ping pong epoch link slot slot …`; a slot is a number, a
    range, or, in brackets, a slot that is being moved, which its owner still serves.

    Args:
        text: the answer.
        asked: the address of the node that answered.
        shards: the numbers of shards by node id; new masters are added.

    Raises:
        ValueError: the text has another form, or names no master with an address.
    """
    owners, members = np.full(SLOTS, UNSERVED), set[str]()
    addresses, ids = dict[int, Address](), dict[int, str]()
    for line in filter(None, text.splitlines()):
        node, place, flags, _, _, _, _, _, *slots = line.split(" ")
        announced, _, hostname = place.partition(",")
        host, _, port = announced.partition("@")[0].rpartition(":")
        says = set(flags.split(","))
        if not port.isdigit() or says & {"handshake", "noaddr"}:
            continue
        members.add(node)
        if "master" not in says:
            continue
        shard = shards.setdefault(node, len(shards) + 1)
        ids[shard] = node
        addresses[shard] = hostname.partition(",")[0] or host or asked[0], int(port)
        for part in slots:
            if part[:1].isdigit():
                first, _, last = part.partition("-")
                owners[int(first) : int(last or first) + 1] = shard
    if not addresses:  # of a replica that has not met its master yet
        raise ValueError("it names no master")
    changes = np.flatnonzero(np.diff(owners)) + 1
    ranges = pairwise([0, *changes.tolist(), SLOTS])
    tablets = (Tablet(number, *each, int(owners[each[0]]), 0) for number, each in enumerate(ranges, start=1))
    return ClusterMap(Placement.of(tablets), addresses, ids, frozenset(members))
