"""Filters, assignments and aggregates: SQL text with the meaning that it has in Spark.

`Predicate` is a filter. sqlglot parses its text (`parser`) into a small typed tree (`expression`, `nodes`,
`coercion`), which Arrow kernels evaluate (`kernels`, `casts`) in three-valued logic. An expression that
cannot be evaluated exactly as in Spark is refused. `with_parameters` writes values into a filter as literals
(`parameters`). `Assignment` is a new value of a column, by the same rules.

`value_set` returns the values of one column with which a condition can be true, as intervals of keys
(`key_sets`, `bounds`). Reads skip rows with other values. A set may be too wide, which costs time, but never
too narrow, which would lose rows; tests compare the sets with the evaluator.

`Aggregate` is a function of a column over the rows of a group (`aggregates`). `Fold` computes aggregates page
by page, in memory that depends on the number of groups (`folding`). It returns the result that Spark would
return, or partial rows that Spark adds up.

The modules, from the bottom up:

key_sets           sets of value keys, as intervals of bytes
bounds             the values of a column below, equal to and above a constant
expression         the typed tree, and its normalised text
coercion           the types of a computation
nodes              constructors of the tree, with Spark's conversions and checks
casts              CAST on whole arrays
kernels            evaluation of a tree on record batches
parser             SQL text to a tree
predicate          a filter
parameters         values as literals
assignment         a new value of a column
value_sets         the values with which a condition can be true
aggregates         functions over groups
folding            computation of aggregates page by page

All of this is pure, and independent of files, indexes and scans.
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
