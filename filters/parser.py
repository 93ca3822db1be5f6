"""The parser of filters: SQL text to a typed expression.

The grammar is the Spark dialect of sqlglot. A node of its tree is accepted only if all of its arguments are
known here, so that no part of the text is ignored. Where its precedence differs from Spark's, parentheses are
required. Double quotes are refused: in Spark they contain a text, in most other systems a name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from sqlglot import exp, parse_one
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, SqlglotError, TokenError

from elasticscan.base.errors import FilterError, NotFound
from elasticscan.base.formatting import is_whole
from elasticscan.base.limits import MAX_FILTER_BYTES, MAX_FILTER_DEPTH, MAX_FILTER_PARTS
from elasticscan.base.suggestions import suggest
from elasticscan.filters import nodes
from elasticscan.filters.coercion import TIMESTAMP, TIMESTAMP_NTZ, computed_type, decimal_type, type_name
from elasticscan.filters.expression import COLUMN, Expression, condition, literal, quote_name, shortened

# Errors that sqlglot raises for unexpected texts, besides errors of its own.
STUMBLES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_LISTED_COLUMNS = 20

_Names = dict[type[exp.Expr], str]
_COMPARISONS: _Names = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=", exp.NullSafeEQ: "<=>",
}  # fmt: skip
_ARITHMETIC: _Names = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "DIV",
}
_TESTS = (exp.Is, exp.Between, exp.In, exp.Like, exp.ILike, exp.RegexpLike, exp.Escape, exp.Not)
_PATTERNS: _Names = {
    exp.Like: "LIKE", exp.ILike: "ILIKE",
    exp.StartsWith: "STARTSWITH", exp.EndsWith: "ENDSWITH", exp.Contains: "CONTAINS",
}  # fmt: skip
# For each function: its name in the tree, the conversion of its argument, and its type.
_FUNCTIONS: dict[type[exp.Expr], tuple[str, Callable[[Expression], Expression], pa.DataType]] = {
    exp.Upper: ("UPPER", nodes.text, pa.string()),
    exp.Lower: ("LOWER", nodes.text, pa.string()),
    exp.Length: ("LENGTH", nodes.text_or_bytes, pa.int32()),
    exp.IsNan: ("ISNAN", nodes.floating, pa.bool_()),
    exp.Year: ("YEAR", nodes.day, pa.int32()),
    exp.Month: ("MONTH", nodes.day, pa.int32()),
    exp.Day: ("DAY", nodes.day, pa.int32()),
    exp.DayOfMonth: ("DAY", nodes.day, pa.int32()),
}
_TYPES = {
    "BOOLEAN": pa.bool_(), "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(),
    "BIGINT": pa.int64(), "FLOAT": pa.float32(), "DOUBLE": pa.float64(), "TEXT": pa.string(),
    "BINARY": pa.binary(), "DATE": pa.date32(), "TIMESTAMP": TIMESTAMP, "TIMESTAMPTZ": TIMESTAMP,
    "TIMESTAMPLTZ": TIMESTAMP, "TIMESTAMPNTZ": TIMESTAMP_NTZ,
}  # fmt: skip


class FilterSql(Spark):
    """The SQL of Spark 4: a doubled quote in a text is a quote."""

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES = ["\\", "'", '"']  # noqa: RUF012 -- the base class declares it so


def parse_condition(text: str | exp.Expr, schema: pa.Schema) -> Expression:
    """Parse a condition over the columns of a schema, from text or from a tree of sqlglot.

    Raises `FilterError` for an unsupported condition, and `NotFound` for an unknown or ambiguous column.
    """
    build = _TreeBuilder(schema).condition
    return _read(text, build) if isinstance(text, str) else build(text)


def parse_value(text: str, schema: pa.Schema) -> Expression:
    """Parse an expression of any type. Raises the same errors as `parse_condition`."""
    return _read(text, _TreeBuilder(schema).read)


def _read(text: str, build: Callable[[exp.Expr], Expression]) -> Expression:
    if not is_whole(text):
        raise FilterError("the filter has a lone surrogate; give it valid text")
    size = len(text.encode())
    if size > MAX_FILTER_BYTES:
        raise FilterError(
            f"the filter is {size} bytes long; at most {MAX_FILTER_BYTES} are allowed", bytes=size
        )
    check_quotes(text)
    try:
        return build(_parse(text))
    except RecursionError:
        raise FilterError(
            "the filter is nested too deeply; split it into AND or OR of simpler parts"
        ) from None


def check_quotes(text: str) -> None:
    """Raise `FilterError` for double quotes, unless they are in texts, names or comments."""
    if '"' not in text:
        return
    try:
        tokens = FilterSql().tokenize(text)
    except (SqlglotError, *STUMBLES):
        return  # parsing fails in the same way
    for token in tokens:
        piece = text[token.start : token.end + 1]
        if piece.endswith('"'):
            inner, piece = shortened(piece[piece.index('"') + 1 : -1], 80), shortened(piece, 80)
            raise FilterError(
                f"{piece} may be a text or a name; write '{inner}' for text, `{inner}` for a column",
                piece=piece,
            )


def _parse(text: str) -> exp.Expr:
    try:
        return parse_one(text, dialect=FilterSql, into=exp.Condition)
    except TokenError:
        raise not_closed(text) from None
    except (SqlglotError, *STUMBLES) as error:
        first = error.errors[0] if isinstance(error, ParseError) and error.errors else {}
        near = f" near {first['highlight']!r} (line {first['line']}, column {first['col']})" if first else ""
        why = first.get("description") or "not a SQL condition"
        if why.startswith("Required keyword"):  # the rest names a class of sqlglot
            why = "a value or a name is missing"
        raise FilterError(f"cannot read the filter{near}: {why}", filter=text) from None


def not_closed(text: str) -> FilterError:
    """Return the error for a text that ends within quotes or a comment."""
    return FilterError(
        f"cannot read the filter: a quote or a comment is not closed in {shortened(text, 80)!r}", filter=text
    )


def _piece(node: exp.Expr) -> str:
    try:
        text = node.sql(dialect=FilterSql, comments=False)
    except (SqlglotError, ValueError):
        text = node.key
    return shortened(text, 80)


def _unsupported(node: exp.Expr) -> FilterError:
    piece = _piece(node)
    if isinstance(node, exp.Placeholder | exp.Parameter):
        return FilterError(f"{piece!r} has no value; pass parameters={{…}} or write a literal", piece=piece)
    return FilterError(f"filters do not support {piece!r}; docs/filters.md lists their language", piece=piece)


class _TreeBuilder:
    """Builder of the typed tree from sqlglot's tree."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.nodes = 0
        self.depth = 0

    def condition(self, node: exp.Expr) -> Expression:
        parsed = self.read(node)
        if parsed.type not in (pa.bool_(), pa.null()):
            kind = type_name(parsed.type)
            raise FilterError(f"{_piece(node)!r} is {kind}; a filter must be true or false for each row")
        return nodes.convert(parsed, pa.bool_())

    def read(self, node: exp.Expr) -> Expression:
        self.nodes += 1
        if self.nodes > MAX_FILTER_PARTS:
            raise FilterError(f"the filter has more than {MAX_FILTER_PARTS} parts", nodes=self.nodes)
        if self.depth >= MAX_FILTER_DEPTH:
            raise FilterError(
                f"the filter is nested more than {MAX_FILTER_DEPTH} levels deep", depth=self.depth
            )
        handler, supported = _HANDLERS.get(type(node), (None, frozenset()))
        if handler is None or any(value for key, value in node.args.items() if key not in supported):
            raise _unsupported(node)
        self.depth += 1
        try:
            return handler(self, node)
        except FilterError as error:
            if error.fields:
                raise
            piece = _piece(node)
            raise FilterError(f"{error.message} (in {piece!r})", piece=piece) from None
        finally:
            self.depth -= 1

    def operands(self, node: exp.Expr) -> tuple[Expression, Expression]:
        return self.read(node.this), self.read(node.args["expression"])

    # ------------------------------------------------------------------------------- leaves

    def paren(self, node: exp.Expr) -> Expression:
        return self.read(node.this)

    def column(self, node: Any) -> Expression:
        path: list[str] = []
        kind: pa.DataType | None = None
        for name in _name_parts(node):
            fields = list(self.schema) if kind is None else list(kind.fields) if pt.is_struct(kind) else []
            field = _find_field(name, fields, path)
            path.append(field.name)
            kind = field.type
        return Expression(COLUMN, (), computed_type(kind), tuple(path))

    def literal(self, node: exp.Expr) -> Expression:
        return literal(node.this, pa.string()) if node.args.get("is_string") else nodes.number(node.this)

    def constant(self, node: exp.Expr) -> Expression:
        if isinstance(node, exp.Null):
            return nodes.NULL
        return literal(bool(node.this), pa.bool_())

    def binary(self, node: exp.Expr) -> Expression:
        digits = str(node.this)
        return literal(bytes.fromhex(digits if len(digits) % 2 == 0 else f"0{digits}"), pa.binary())

    # ----------------------------------------------------------------------------- conditions

    def connective(self, node: exp.Expr) -> Expression:
        op = "AND" if isinstance(node, exp.And) else "OR"
        parts: list[Expression] = []
        for operand in node.flatten(unnest=False):
            part = nodes.boolean(self.read(operand))
            parts += part.args if part.op == op else [part]
        return condition(op, *parts)

    def negation(self, node: exp.Expr) -> Expression:
        return condition("NOT", nodes.boolean(self.read(node.this)))

    def comparison(self, node: exp.Expr) -> Expression:
        right = node.args["expression"]
        bare = right.unnest() if isinstance(node, exp.NullSafeEQ) else right
        # sqlglot adds parentheses around the right side of <=>.
        if isinstance(node.this, _TESTS) or isinstance(right, _TESTS) or type(bare) in _COMPARISONS:
            raise FilterError(
                "put the comparison in parentheses, on the left side; Spark reads this differently"
            )
        return nodes.compare(_COMPARISONS[type(node)], *self.operands(node))

    def test(self, node: exp.Expr) -> Expression:
        child, state = self.read(node.this), node.args["expression"]
        if isinstance(state, exp.Null):
            return condition("IS", child)
        if not isinstance(state, exp.Boolean):
            raise _unsupported(node)
        return condition("IS", nodes.boolean(child), value=bool(state.this))

    def between(self, node: exp.Expr) -> Expression:
        child, low, high = (self.read(node.args[key]) for key in ("this", "low", "high"))
        return condition("AND", nodes.compare(">=", child, low), nodes.compare("<=", child, high))

    def membership(self, node: exp.Expr) -> Expression:
        listed = node.expressions
        if len(listed) == 1 and isinstance(listed[0], exp.Tuple):  # `IN (:name)` with a list
            listed = listed[0].expressions
        values = [self.read(value) for value in listed]
        if not values:
            raise FilterError("IN needs at least one value")
        return nodes.member(self.read(node.this), values)

    def pattern(self, node: exp.Expr) -> Expression:
        match = nodes.match(_PATTERNS[type(node)], *self.operands(node))
        return condition("NOT", match) if node.args.get("negate") else match

    # --------------------------------------------------------------------- values and functions

    def arithmetic(self, node: exp.Expr) -> Expression:
        interval = node.args["expression"]
        if isinstance(interval, exp.Interval) and isinstance(node, exp.Add | exp.Sub):
            number, unit = interval.this, interval.args.get("unit")
            if not isinstance(number, exp.Literal) or not isinstance(unit, exp.Var):
                raise _unsupported(interval)
            return nodes.shifted_date(_ARITHMETIC[type(node)], self.read(node.this), number.name, unit.name)
        return nodes.arithmetic(_ARITHMETIC[type(node)], *self.operands(node))

    def negative(self, node: exp.Expr) -> Expression:
        # The sign is a part of the number: 9223372036854775808 without it is not a BIGINT.
        inner = node.this
        digits = inner.this if isinstance(inner, exp.TryCast) else inner
        if isinstance(digits, exp.Literal) and not digits.is_string:
            value = nodes.number(f"-{digits.this}")
            return value if digits is inner else nodes.explicit_cast(value, self.target(inner))
        return nodes.sign("NEGATE", self.read(inner))

    def absolute(self, node: exp.Expr) -> Expression:
        return nodes.sign("ABS", self.read(node.this))

    def cast(self, node: exp.Expr) -> Expression:
        return nodes.explicit_cast(self.read(node.this), self.target(node))

    def target(self, node: exp.Expr) -> pa.DataType:
        to = node.args["to"]
        parameters = [parameter.name for parameter in to.expressions]
        sizes = [int(name) for name in parameters if name.isascii() and name.isdigit() and len(name) < 10]
        if to.this == exp.DataType.Type.DECIMAL and len(sizes) == len(to.expressions):
            precision, scale = [*sizes, 0][:2] if sizes else [10, 0]
            if precision < 1 or scale > precision:
                raise FilterError(f"DECIMAL({precision}, {scale}) is no type")
            return decimal_type(precision, scale)
        kind = _TYPES.get(to.this.name if isinstance(to.this, exp.DataType.Type) else "")
        if kind is None or to.expressions:
            raise FilterError(f"filters cannot CAST to {_piece(to)}", piece=_piece(node))
        return kind

    def conditional(self, node: exp.Expr) -> Expression:
        if isinstance(node, exp.If):
            branches = [(self.read(node.this), self.read(node.args["true"]))]
            default = node.args.get("false")
        else:
            subject = self.read(node.this) if node.this else None
            branches = []
            for branch in node.args["ifs"]:
                when = self.read(branch.this)
                when = when if subject is None else nodes.compare("=", subject, when)
                branches.append((when, self.read(branch.args["true"])))
            default = node.args.get("default")
        return nodes.case(branches, self.read(default) if default else nodes.NULL)

    def coalesce(self, node: exp.Expr) -> Expression:
        return nodes.coalesce([self.read(argument) for argument in (node.this, *node.expressions)])

    def null_if(self, node: exp.Expr) -> Expression:
        left, right = self.operands(node)
        return nodes.case([(nodes.compare("=", left, right), literal(None, left.type, implicit=True))], left)

    def concat(self, node: exp.Expr) -> Expression:
        if isinstance(node, exp.DPipe) and isinstance(node.args["expression"], exp.Add | exp.Sub):
            raise FilterError("put the + or - in parentheses; Spark gives it the same precedence as ||")
        parts = self.operands(node) if isinstance(node, exp.DPipe) else map(self.read, node.expressions)
        return nodes.concat(list(parts))

    def function(self, node: exp.Expr) -> Expression:
        name, convert, kind = _FUNCTIONS[type(node)]
        return Expression(name, (convert(self.read(node.this)),), kind)

    def trim(self, node: exp.Expr) -> Expression:
        side = {"": "TRIM", "BOTH": "TRIM", "LEADING": "LTRIM", "TRAILING": "RTRIM"}[node.text("position")]
        return Expression(side, (nodes.text(self.read(node.this)),), pa.string())


def _name_parts(node: exp.Column | exp.Dot) -> list[str]:
    for part in node.parts:
        if not isinstance(part, exp.Identifier):
            raise _unsupported(part)
    return [part.name for part in node.parts]


def _find_field(name: str, fields: list[pa.Field], parents: list[str]) -> pa.Field:
    """Return the field with a name, whose case does not matter, as in Spark."""
    matches = [field for field in fields if field.name.lower() == name.lower()]
    if len(matches) == 1:
        return matches[0]
    full = ".".join(map(quote_name, [*parents, name]))
    if matches:
        names = " and ".join(field.name for field in matches)
        raise NotFound(
            f"column {full} of the filter is ambiguous: there are {names}", column=full, kind="column"
        )
    listed = ", ".join(field.name for field in fields[:_LISTED_COLUMNS]) or "none"
    owner = f"{'.'.join(map(quote_name, parents))} has no field" if parents else "there is no column"
    hint = suggest(name, [field.name for field in fields]) or f"; there are: {listed}"
    raise NotFound(f"{owner} {quote_name(name)}{hint}", column=full, kind="column")


_Handler = Callable[[_TreeBuilder, exp.Expr], Expression]


def _handlers() -> dict[type[exp.Expr], tuple[_Handler, frozenset[str]]]:
    """Return, for each kind of node, its method and the arguments that the method supports."""
    two = "this expression"
    table: list[tuple[tuple[type[exp.Expr], ...], _Handler, str]] = [
        ((exp.Paren, exp.TsOrDsToDate), _TreeBuilder.paren, "this"),
        ((exp.Column,), _TreeBuilder.column, "this table db catalog"),
        ((exp.Dot,), _TreeBuilder.column, two),
        ((exp.Literal,), _TreeBuilder.literal, "this is_string"),
        ((exp.Null, exp.Boolean), _TreeBuilder.constant, "this"),
        ((exp.HexString,), _TreeBuilder.binary, "this"),
        ((exp.And, exp.Or), _TreeBuilder.connective, two),
        ((exp.Not,), _TreeBuilder.negation, "this"),
        (tuple(_COMPARISONS), _TreeBuilder.comparison, two),
        ((exp.Is,), _TreeBuilder.test, two),
        ((exp.Between,), _TreeBuilder.between, "this low high"),
        ((exp.In,), _TreeBuilder.membership, "this expressions"),
        (tuple(_PATTERNS), _TreeBuilder.pattern, f"{two} negate"),
        (tuple(_ARITHMETIC), _TreeBuilder.arithmetic, f"{two} typed safe"),
        ((exp.Neg,), _TreeBuilder.negative, "this"),
        ((exp.Abs,), _TreeBuilder.absolute, "this"),
        ((exp.Cast, exp.TryCast), _TreeBuilder.cast, "this to"),
        ((exp.If,), _TreeBuilder.conditional, "this true false"),
        ((exp.Case,), _TreeBuilder.conditional, "this ifs default"),
        ((exp.Coalesce,), _TreeBuilder.coalesce, "this expressions is_nvl"),
        ((exp.Nullif,), _TreeBuilder.null_if, two),
        ((exp.Concat,), _TreeBuilder.concat, "expressions safe"),
        ((exp.DPipe,), _TreeBuilder.concat, f"{two} safe"),
        (tuple(_FUNCTIONS), _TreeBuilder.function, "this"),
        ((exp.Trim,), _TreeBuilder.trim, "this position"),
    ]
    return {
        kind: (handler, frozenset(supported.split())) for kinds, handler, supported in table for kind in kinds
    }


_HANDLERS = _handlers()
