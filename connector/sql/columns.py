"""The columns of a table that a query may need.

Spark looks a name up in what surrounds it, and this does not try to be as clever: a column is
needed if its name is mentioned anywhere in the SELECT that reads the table (sub-queries included),
bare or behind the table's alias. So a name that two tables have is read from both, and Spark still
finds it ambiguous where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from sqlglot import exp

from elasticscan.connector.sql.joins import SelectBlock
from elasticscan.connector.sql.query import Query, Reference


def needed_columns(
    query: Query, block: SelectBlock, reference: Reference, columns: Sequence[str]
) -> set[str] | None:
    """Return the columns of a reference that the query mentions; None when it may need every one."""
    region: exp.Expr = block.select
    # An ORDER BY behind a parenthesised SELECT can still name the columns inside the parentheses.
    while isinstance(region.parent, exp.Subquery):
        region = region.parent
    alias = reference.alias.lower()
    names = set(query.words)
    for node in region.walk():
        if isinstance(node, exp.Star):
            if _takes_all(node, block.select, alias):
                return None
        elif isinstance(node, exp.Column):
            parts = [part.name.lower() for part in node.parts]
            names.add(parts[0])
            names.update(after for part, after in pairwise(parts) if part == alias)
        elif isinstance(node, exp.Identifier) and not _defines(node):
            names.add(node.name.lower())
    return {column for column in columns if column.lower() in names}


def _defines(name: exp.Identifier) -> bool:
    """Return True if the identifier defines an alias, or belongs to a column or table."""
    if isinstance(name.parent, exp.Alias):
        return name.arg_key == "alias"
    return isinstance(name.parent, exp.Column | exp.Table | exp.TableAlias)


def _takes_all(star: exp.Star, select: exp.Select, alias: str) -> bool:
    parent = star.parent
    if isinstance(parent, exp.Column):
        # `f.*` takes all columns of f; `f.struct.*` only reads the column `struct`.
        return parent.parts[-2].name.lower() == alias
    if isinstance(parent, exp.Count) and not any(star.args.values()):
        return False
    if isinstance(parent, exp.Dot):
        return alias in {part.name.lower() for part in parent.find_all(exp.Identifier)}
    owner = star.find_ancestor(exp.Select)
    if owner is not None and star.parent is owner and isinstance(owner.parent, exp.Exists):
        return False
    # In a SELECT without a FROM, `*` means the columns of the SELECT around it.
    while owner is not None and owner is not select and owner.args.get("from_") is None:
        owner = owner.find_ancestor(exp.Select)
    return owner is None or owner is select
