"""Rows by primary key: the cursor rule for a read that takes one request per shard and needs no cursor.

Keys are grouped by the shard of their slot. Each shard is asked, and the placement is read again. Answers for
slots whose (shard, epoch) changed in between are dropped, and their keys are requested again.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from elasticscan.protocol import Placements, RowRequest, Shards
from elasticscan.reader.cursor import staying_rows
from elasticscan.topology import Placement, SlotSet


def read_by_key(
    request: RowRequest, placement: Placement, placements: Placements, shards: Shards
) -> tuple[NDArray[np.int64], list[pa.RecordBatch]]:
    """Return the rows with the keys of a request, from all shards.

    The request's shard is ignored, and its layout is that of `placement`. Returns for each key the number of
    its row, counted over all batches, or -1 if it has none; and the batches.
    """
    places = np.full(len(request.slots), -1, dtype=np.int64)
    batches: list[pa.RecordBatch] = []
    rows, left = 0, np.arange(len(places))
    while len(left):
        owners = placement.owners[np.searchsorted(placement.starts, request.slots[left], "right") - 1]
        answers = []
        for shard in np.unique(owners).tolist():
            numbers, part = left[owners == shard], replace(request, shard=shard)
            if len(numbers) < len(places):
                keys = request.keys.take(pa.array(numbers))
                part = replace(part, slots=request.slots[numbers], keys=keys)
            answers.append((numbers, shards.read_rows(part)))
        now = placements.current()
        moved = now.changed_since(placement, SlotSet.span(0, now.slot_count))
        again = []
        for numbers, answer in answers:
            stays = staying_rows(request.slots[numbers], moved)
            places[numbers] = np.where(stays & (answer.places >= 0), answer.places + rows, -1)
            again.append(numbers[~stays])
            batches.append(answer.rows)
            rows += answer.rows.num_rows
        left = np.sort(np.concatenate(again))
        placement, request = now, replace(request, layout=None)
    return places, batches
