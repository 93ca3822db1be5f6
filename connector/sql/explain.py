"""A plan as text, for people."""

from __future__ import annotations

from collections.abc import Sequence

from elasticscan.connector.sql.plan import QueryPlan, TableScan


def explain_plan(plan: QueryPlan, snapshot: int, reads: Sequence[str | None], ended: Sequence[bool]) -> str:
    """Return the scans of a plan and the query that Spark runs.

    Args:
        reads: for each scan what is read alongside the driver; None for one that tasks make.
        ended: as for `QueryPlan.rewritten`.
    """
    names = [f"{scan.reference.table}#{number}" for number, scan in enumerate(plan.scans, 1)]
    parts = [_scan(*each) for each in zip(names, plan.scans, reads, ended, strict=True)]
    return "\n\n".join([f"snapshot {snapshot}", *parts, plan.rewritten(names, ended).strip()])


def left_alone(text: str, why: str) -> str:
    return f"given to Spark as it is, over the plain views: {why}\n\n{text.strip()}"


def _scan(name: str, scan: TableScan, read_here: str | None, ended: bool) -> str:
    reference, total = scan.reference, len(scan.table.schema)
    lines = [name if reference.alias == reference.table else f"{name} AS {reference.alias}"]
    if reference.as_of is not None:
        lines.append(f"  as of    {reference.as_of.text}")
    if scan.columns is None:
        lines.append(f"  columns  all {total}: {scan.why_all}")
    else:
        lines.append(f"  columns  {', '.join(scan.columns)} ({len(scan.columns)} of {total})")
    lines.append(f"  filter   {scan.filter or 'none'}")
    if scan.limit is not None:
        order = f" in the order of {', '.join(scan.limit.order)}" if scan.limit.order else ""
        lines.append(f"  limit    {scan.limit.rows:,}{order}")
    if scan.aggregates is not None:
        partial = scan.aggregates.partial
        by = f" by {', '.join(partial.by)}" if partial.by else ""
        rest = "each group once" if ended else "partial rows, added up by Spark"
        lines.append(f"  folded   {', '.join(partial.values) or 'rows'}{by}: {rest}")
    if read_here is not None:
        lines.append(f"  read     {read_here}")
    lines += [f"  stays    {condition}: {why}" for condition, why in scan.stayed]
    return "\n".join(lines)
