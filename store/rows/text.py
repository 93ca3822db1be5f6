"""CSV and JSON lines, read as text that takes a type only where the type changes no value.

The readers of Arrow turn `0x10` into 16, `+49151` into 49151.0, and 9007199254740993 into a float that ends
in 992. An identifier must not change, so CSV is read as text, and `guess_type` gives a column the first type
that holds all texts of the sample as they are written. `cast_text` applies the same rule to the rows after
the sample. JSON itself marks its numbers; there only whole numbers that a float rounds are looked for.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
from pyarrow import fs

from elasticscan.store import arguments
from elasticscan.store.rows.typed import map_leaves

# The types of a new table's columns are guessed from this many bytes of the first file.
SAMPLE_BYTES = 32 << 20
BLOCK_BYTES = 4 << 20
TIMES = (pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"))
TYPES = (pa.int64(), pa.bool_(), pa.float64(), *TIMES)
_OTHER_TYPE = "; name its type, as in types={{{0!r}: 'string'}} or --type {0}=string"
_MAX_EXACT = 1 << 53  # of whole numbers in a float
# What a column of floats would change: a plus, leading zeros, more than 15 digits, or codes such as 12e4.
_NOT_FLOAT = r"^(?:\+|-0$|-?0[0-9]|-?[0-9]{16,}$|-?[0-9]+[eE][0-9]+$)"


@dataclass(frozen=True, slots=True)
class TextRules:
    """Rules for reading CSV and JSON.

    Attributes:
        nulls: texts that are null in CSV, besides an empty field without quotes.
        types: types of columns by name, instead of guessed ones.
        delimiter: the character between fields of CSV.
        columns: names of the columns of CSV without a header; None where it has one.
    """

    nulls: tuple[str, ...] = ()
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    delimiter: str = ","
    columns: tuple[str, ...] | None = None

    @classmethod
    def of(cls, nulls: Any, types: Any, delimiter: Any, column_names: Any) -> TextRules:
        """Check the rules that a caller gave."""
        columns = None if column_names is None else tuple(arguments.names("column_names", column_names))
        return cls(
            tuple(arguments.names("nulls", nulls)),
            arguments.or_none(arguments.types, "types", types) or {},
            arguments.delimiter("delimiter", delimiter),
            columns,
        )


def guess_schema(system: fs.FileSystem, path: str, kind: str, rules: TextRules) -> pa.Schema:
    """Return the columns of a text file, in the types that were named or that hold its sample."""
    reader, candidates = _open(system, path, kind, rules, rules.types, SAMPLE_BYTES)
    sample = next(reader, None) or pa.RecordBatch.from_pylist([], schema=reader.schema)
    sample.validate(full=True)  # text that is not UTF-8
    return pa.schema(
        [
            (name, rules.types.get(name) or guess_type(column, candidates))
            for name, column in zip(sample.schema.names, sample.columns, strict=True)
        ]
    )


def read_text(
    system: fs.FileSystem, path: str, kind: str, rules: TextRules, schema: pa.Schema, guessed: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a text file, its columns in the types of a schema.

    Args:
        guessed: the columns whose types were guessed, and may change no value.

    Raises:
        pa.ArrowInvalid: a value does not fit the type of its column.
    """
    types = {each.name: each.type for each in schema}
    reader, candidates = _open(system, path, kind, rules, types, BLOCK_BYTES)
    floats = [
        name for name in guessed if name in types and name in reader.schema.names and candidates is TIMES
    ]
    for batch in reader:
        batch.validate(full=True)
        names = batch.schema.names
        if any(_has_large(batch[name]) for name in floats):
            _check_rounded(system, path, {name: types[name] for name in floats})
            floats = []
        columns = [
            cast_text(name, column, types.get(name, column.type), is_guessed=name in guessed)
            for name, column in zip(names, batch.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, names=names)


def guess_type(texts: pa.Array, candidates: Sequence[pa.DataType]) -> pa.DataType:
    """Return the first type that holds all texts as they are written, else text; other types stay."""
    kind = texts.type
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(guess_type(texts.flatten(), candidates)))
    if pa.types.is_struct(kind):
        inner = [guess_type(pc.struct_field(texts, [at]), candidates) for at in range(kind.num_fields)]
        return pa.struct([each.with_type(of) for each, of in zip(kind, inner, strict=True)])
    if not pa.types.is_string(kind) or texts.null_count == len(texts):
        return kind
    begin = texts.drop_null().slice(0, 1_000)  # a cast that fails takes as long as one that does not
    return next((each for each in candidates if _holds(begin, each) and _holds(texts, each)), kind)


def _holds(texts: pa.Array, kind: pa.DataType) -> bool:
    try:
        cast_text("", texts, kind, is_guessed=True)
    except pa.ArrowInvalid:
        return False
    return True


def cast_text(name: str, texts: pa.Array, kind: pa.DataType, *, is_guessed: bool) -> pa.Array:
    """Return the values of a column in its type; a guessed type may change none of them.

    Raises:
        pa.ArrowInvalid: a text is no value of the type, or another value than the one that is written.
    """
    if texts.type == kind:
        return texts
    if not pa.types.is_string(texts.type):
        return pc.cast(texts, kind)
    texts = pc.utf8_trim_whitespace(texts)
    try:
        values = pc.cast(texts, kind)
    except pa.ArrowInvalid as error:
        raise pa.ArrowInvalid(f"column {name!r}: {error}{_OTHER_TYPE.format(name)}") from error
    changed = texts.filter(_is_changed(texts, values, is_guessed))
    if len(changed):
        text = changed[0].as_py()
        raise pa.ArrowInvalid(
            f"column {name!r} has {text!r}, which {kind} would change{_OTHER_TYPE.format(name)}"
        )
    return values


def _is_changed(texts: pa.Array, values: pa.Array, is_guessed: bool) -> pa.Array:
    """Return for each text whether its value is not the one that is written."""
    kind = values.type
    if pa.types.is_floating(kind):
        infinite = pc.and_(pc.is_inf(values), pc.invert(pc.match_substring(texts, "inf", ignore_case=True)))
        return pc.or_(infinite, pc.match_substring_regex(texts, _NOT_FLOAT)) if is_guessed else infinite
    if is_guessed and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        return pc.not_equal(pc.cast(values, pa.string()), pc.utf8_lower(texts))
    if pa.types.is_integer(kind):  # hexadecimal digits become negative numbers
        return pc.match_substring(texts, "0x", ignore_case=True)
    return pa.repeat(pa.scalar(False), len(texts))


# Readers


def _open(
    system: fs.FileSystem,
    path: str,
    kind: str,
    rules: TextRules,
    types: Mapping[str, pa.DataType],
    block_bytes: int,
) -> tuple[pa.RecordBatchReader, Sequence[pa.DataType]]:
    """Return a reader of a file, and the types that its texts may take."""
    if kind == "csv":
        return _open_csv(system, path, rules, types, block_bytes), TYPES
    with system.open_input_stream(path) as start:  # Arrow crashes on a file whose only value is null
        first = start.read(SAMPLE_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if first and first not in (b"{", b"["):
        raise pa.ArrowInvalid("a line of JSON has to be one object")
    names = _open_json(system, path, SAMPLE_BYTES, None, "infer").schema
    check_names(names)
    wanted = [(each.name, types.get(each.name, each.type)) for each in names]
    explicit = pa.schema([(name, map_leaves(kind, _time_as_text)) for name, kind in wanted])
    return _open_json(system, path, block_bytes, explicit, "error"), TIMES


def _open_csv(
    system: fs.FileSystem, path: str, rules: TextRules, types: Mapping[str, pa.DataType], block_bytes: int
) -> pa.RecordBatchReader:
    binary = {name: pa.binary() for name, kind in types.items() if pa.types.is_binary(kind)}
    return pyarrow.csv.open_csv(
        system.open_input_stream(path),  # which decompresses .gz, .bz2 and .zst
        read_options=pyarrow.csv.ReadOptions(block_size=block_bytes, column_names=rules.columns),
        parse_options=pyarrow.csv.ParseOptions(delimiter=rules.delimiter, newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types=binary,
            default_column_type=pa.string(),
            null_values=["", *rules.nulls],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _open_json(
    system: fs.FileSystem, path: str, block_bytes: int, explicit: pa.Schema | None, unexpected: str
) -> pa.RecordBatchReader:
    return pyarrow.json.open_json(
        system.open_input_stream(path),
        read_options=pyarrow.json.ReadOptions(block_size=block_bytes),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=explicit, unexpected_field_behavior=unexpected
        ),
    )


def check_names(fields: Iterable[pa.Field]) -> None:
    """Raise `UnicodeDecodeError` where a name, also of a field within another, is not UTF-8."""
    for each in fields:
        assert isinstance(each.name, str), "it is decoded here"
        check_names(each.type.field(at) for at in range(each.type.num_fields))


def _time_as_text(leaf: pa.DataType) -> pa.DataType:
    """Return text in place of a date or time, of which Arrow's JSON drops the zone."""
    return pa.string() if pa.types.is_timestamp(leaf) or pa.types.is_date(leaf) else leaf


# Whole numbers of JSON that are read as floats


def _has_large(values: pa.Array) -> bool:
    """Return whether floats, also in lists and structs, may be whole numbers that were rounded."""
    if pa.types.is_list(values.type):
        return _has_large(values.flatten())
    if pa.types.is_struct(values.type):
        return any(_has_large(pc.struct_field(values, [at])) for at in range(values.type.num_fields))
    return pa.types.is_floating(values.type) and bool(
        pc.any(pc.greater_equal(pc.abs(values), float(_MAX_EXACT))).as_py()
    )


def _check_rounded(system: fs.FileSystem, path: str, types: Mapping[str, pa.DataType]) -> None:
    """Raise `pa.ArrowInvalid` if a whole number of the file is rounded in one of these columns."""
    with io.BufferedReader(system.open_input_stream(path)) as lines:
        for line in filter(bytes.strip, lines):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise pa.ArrowInvalid("large numbers are read if each line has one object") from error
            if not isinstance(row, dict):
                raise pa.ArrowInvalid("large numbers are read if each line has one object")
            for name, kind in types.items():
                if _rounds(row.get(name), kind):
                    raise pa.ArrowInvalid(
                        f"column {name!r} has a whole number that a float rounds; name its type, as in "
                        f"types={{{name!r}: pyarrow.decimal128(38)}}"
                    )


def _rounds(value: Any, kind: pa.DataType) -> bool:
    if isinstance(value, list) and pa.types.is_list(kind):
        return any(_rounds(each, kind.value_type) for each in value)
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return any(_rounds(value.get(part.name), part.type) for part in kind)
    if not pa.types.is_floating(kind) or not isinstance(value, int):
        return False
    try:
        return float(value) != value
    except OverflowError:
        return True
