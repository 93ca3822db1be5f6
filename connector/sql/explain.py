"""A plan as text, for people."""

from __future__ import annotations

from collections.abc import Mapping

from elasticscan.connector.sql.plan import QueryPlan, TableScan


def explain_plan(plan: QueryPlan, snapshot: int, totals: Mapping[str, int]) -> str:
    """The scans of a plan and the query that Spark runs; `totals` has each view's number of columns."""
    if not plan.scans:
        return left_alone(plan.text, "it reads no table of the store")
    names = [f"{scan.view}#{number}" for number, scan in enumerate(plan.scans, 1)]
    parts = [f"snapshot {snapshot}"]
    parts += [_scan(name, scan, totals[scan.view]) for name, scan in zip(names, plan.scans, strict=True)]
    return "\n\n".join([*parts, plan.rewritten(names).strip()])


def left_alone(text: str, why: str) -> str:
    return f"given to Spark as it is, over the plain views: {why}\n\n{text.strip()}"


def _scan(name: str, scan: TableScan, total: int) -> str:
    lines = [name if scan.alias == scan.view else f"{name} AS {scan.alias}"]
    if scan.columns is None:
        lines.append(f"  columns  all {total}: {scan.why_all}")
    else:
        lines.append(f"  columns  {', '.join(scan.columns)} ({len(scan.columns)} of {total})")
    lines.append(f"  filter   {scan.filter or 'none'}")
    lines += [f"  stays    {condition}: {why}" for condition, why in scan.stayed]
    return "\n".join(lines)
