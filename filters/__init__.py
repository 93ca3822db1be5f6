"""The language of conditions and aggregates: SQL text as a typed tree, its meaning, values left possible.

`Predicate` is a filter: text that sqlglot reads (`parser`), a small typed tree (`expression`, `nodes`,
`coercion`), evaluated by Arrow kernels (`kernels`, `casts`) in three-valued logic. What cannot
be evaluated exactly as Spark would is refused. `with_parameters` writes values into it as literals
(`parameters`). `Assignment` is a column's new value, read by the same rules.

`value_set` says which values of one column a condition leaves possible, as sets of key intervals (`key_sets`,
`bounds`). Rows may be skipped by them: a set may be too wide, which costs time, and never too
narrow, which would lose rows; tests compare sets with the evaluator.

`Aggregate` is a function of a column over the rows of a group (`aggregates`). `Fold` computes some of them
page by page, in memory that the groups bound (`folding`), with the results that Spark would give, or gives
partial rows that Spark adds up.

The modules, from the bottom up:

key_sets           sets of value keys, as intervals of bytes; bounds: what is below and above a constant
expression         the typed tree, and its normalised text
coercion           types that a filter computes with; nodes: trees with Spark's conversions and checks
casts              CAST on whole arrays; kernels: a tree on record batches
parser             SQL text, read into a tree
predicate          a filter: checked once, then evaluated
parameters         values, written into a condition
assignment         a column's new value
value_sets         the values that a condition leaves possible
aggregates         functions over groups; folding: rows into partial rows, and these into the result

Everything here is pure, and knows nothing of files, indexes or scans.
"""

from elasticscan.filters.aggregates import (
    AVG,
    COUNT_DISTINCT,
    COUNT_ROWS,
    FUNCTIONS,
    Aggregate,
    check_groupable,
)
from elasticscan.filters.assignment import Assignment
from elasticscan.filters.bounds import single_values
from elasticscan.filters.casts import always_fits
from elasticscan.filters.coercion import TIMESTAMP, is_number, type_name
from elasticscan.filters.expression import (
    CAST,
    COLUMN,
    COMPARISONS,
    LITERAL,
    Expression,
    all_of,
    column_names,
    parts_of,
    quote_name,
    shortened,
    to_text,
)
from elasticscan.filters.folding import Fold, ordered_floats
from elasticscan.filters.kernels import constant_of
from elasticscan.filters.key_sets import EVERYTHING, NOT_NULL, NULLS, KeySet, KeySets
from elasticscan.filters.parameters import literal_of, parameter_at, with_parameters
from elasticscan.filters.parser import STUMBLES, FilterSql, parse_value
from elasticscan.filters.predicate import Predicate
from elasticscan.filters.value_sets import ColumnDomain, column_sets, value_set
