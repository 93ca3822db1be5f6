"""A plan as text, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elasticscan.connector.sql.plan import QueryPlan, TableScan


def explain_plan(
    plan: QueryPlan,
    snapshot: int,
    totals: Mapping[str, int],
    reads: Sequence[str | None],
) -> str:
    """Return the scans of a plan and the query that Spark runs.

    Args:
        totals: each view's number of columns.
        reads: for each scan what is read alongside the driver; None for one that tasks make.
    """
    if not plan.scans:
        return left_alone(plan.text, "it reads no table of the store")
    names = [f"{scan.view}#{number}" for number, scan in enumerate(plan.scans, 1)]
    parts = [f"snapshot {snapshot}"]
    parts += [
        _scan(name, scan, totals[scan.view], rows)
        for name, scan, rows in zip(names, plan.scans, reads, strict=True)
    ]
    return "\n\n".join([*parts, plan.rewritten(names).strip()])


def left_alone(text: str, why: str) -> str:
    return f"given to Spark as it is, over the plain views: {why}\n\n{text.strip()}"


def _scan(name: str, scan: TableScan, total: int, read_here: str | None) -> str:
    lines = [name if scan.alias == scan.view else f"{name} AS {scan.alias}"]
    if scan.as_of is not None:
        lines.append(f"  as of    {scan.as_of.text}")
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
        rest = "each group once" if scan.ended else "partial rows, added up by Spark"
        lines.append(f"  folded   {', '.join(partial.values) or 'rows'}{by}: {rest}")
    if read_here is not None:
        lines.append(f"  read     {read_here}")
    lines += [f"  stays    {condition}: {why}" for condition, why in scan.stayed]
    return "\n".join(lines)
