"""Files to load rows from: found by path, pattern or URI, and read through `pyarrow.dataset`.

Files are streamed: memory holds some batches, however large they are. What a directory's name says of its
files (`year=2024`, as Hive and Spark write it) is a column, below the directory or pattern that was named.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json
from pyarrow import fs

from elasticscan.base.errors import InvalidOption, SchemaMismatch
from elasticscan.base.limits import BATCH_ROWS, MAX_NESTING
from elasticscan.base.redaction import shown
from elasticscan.base.suggestions import suggest
from elasticscan.base.user_files import NO_HINTS, naming_file, naming_source
from elasticscan.store import arguments
from elasticscan.store.roots.aliases import file_system_at, whole_uri, with_home
from elasticscan.store.rows import directories, json_lines
from elasticscan.store.rows.iceberg import ICEBERG, iceberg_table
from elasticscan.store.rows.json_lines import timed
from elasticscan.store.rows.kinds import DELTA, STREAM, TEXT, kind_of

# The types of text files are guessed from this many bytes at the beginning of the first, and hold for all.
GUESS_BYTES = 32 << 20
BLOCK_BYTES = 4 << 20
# A Parquet file of more bytes is committed in pieces, where a load can be resumed.
PIECE_BYTES = 256 << 20

VERSIONED = (DELTA, ICEBERG)
_BINARY = {"parquet": "ParquetFileFormat", "arrow": "IpcFileFormat", "orc": "OrcFileFormat"}
# What Arrow says of a file among others that it cannot read, before it says why.
_UNREAD = re.compile(
    r"Error creating dataset\. Could not read schema from '(.+?)'\. Is this a '\w+' file\?: "
    r"Could not open \w+ input source '.*?': (?:Invalid: |IOError: )?",
    re.DOTALL,
)
_WILD = re.compile(r"(\*\*/|\*\*|\*|\?|\[!?[^\]]+\])")
_WILD_AS_REGEX = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
# What to do about a file of text, by a part of what Arrow says; the first that fits counts.
_HINTS = {
    "csv": {
        "Empty CSV": "; its first line has the names of columns, and each line an end",
        "columns, got": "; each line has as many fields as the first; one with a comma stands in quotes",
        "multiple columns named": "; give each column a name of its own",
        "conversion error to timestamp": "; times have microseconds, and those of a column a zone or none: "
        "else name its type, as in types={'a': pyarrow.timestamp('ns', 'UTC')} or `--type a=string`, or say "
        "what stands for null, as in nulls=['NA'] or `--null NA`",
        "": "; say what stands for null, as in nulls=['NA'] or `--null NA`, or name the type of a column, as "
        "in types={'a': 'string'} or `--type a=string`",
    },
    "json": {
        "zone offset": "; times of a column have a zone, or none, as its type says",
        "unexpected field": "; an object has a field that the table lacks, or that none has in the first "
        "32 MB of the file: leave it out, or add the column first (add_columns, `elasticscan add-column`)",
        "changed from": "; the values of a field are of one kind in all objects, and of the column's: "
        "numbers without quotes, texts in quotes. Write them so, or hand in a frame (create_table, upsert)",
        "": "; a file has one JSON object a line, and types={'a': 'string'} or `--type a=string` names the "
        "type of a column",
    },
}
COMMA = ","
# Texts that are numbers to Arrow, which does not keep all of their digits.
_LOST_ZEROS = r"^\s*[+-]?0[0-9]"
_LOST_DIGITS = rf"{_LOST_ZEROS}|^\s*[+-]?[0-9]{{17,}}\s*$"
_NO_COMMA = re.compile(r"[;|\t]")


@dataclass(frozen=True, slots=True)
class TextRules:
    """Rules for reading CSV and JSON text as values.

    Attributes:
        nulls: what stands for null in CSV, alongside a field with nothing in it, not even quotes.
        types: types of columns by name, instead of guessed ones.
        delimiter: the character between fields of CSV.
        columns: names of the columns of CSV that has no first line of names; None where it has one.
    """

    nulls: tuple[str, ...] = ()
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    delimiter: str = COMMA
    columns: tuple[str, ...] | None = None

    @classmethod
    def of(cls, nulls: Any, types: Any, delimiter: Any, column_names: Any) -> TextRules:
        """The rules that a caller gave, checked."""
        columns = None if column_names is None else tuple(arguments.columns("column_names", column_names))
        return cls(
            tuple(arguments.names("nulls", nulls)),
            arguments.types("types", types),
            arguments.delimiter("delimiter", delimiter),
            columns,
        )

    def parsing(self) -> Any:
        """The rules by which pyarrow cuts CSV into fields."""
        return pyarrow.csv.ParseOptions(delimiter=self.delimiter)

    def reading(self, block_bytes: int) -> Any:
        """The rules by which pyarrow reads CSV, in blocks of so many bytes."""
        return pyarrow.csv.ReadOptions(block_size=block_bytes, column_names=self.columns)


@dataclass(frozen=True, slots=True)
class Files:
    """Files of one kind on one file system.

    Attributes:
        base: the directory below which names of directories are columns.
        dataset: what a Delta or an Iceberg table is, whose files and columns its log names.
    """

    system: fs.FileSystem
    base: str
    infos: tuple[fs.FileInfo, ...]
    kind: str
    dataset: Any = None

    @property
    def bytes(self) -> int:
        return sum(info.size or 0 for info in self.infos)

    def named_columns(self) -> list[str]:
        """The columns that names of directories give."""
        names = (directories.parts_of(self.base, info.path) for info in self.infos)
        return list(dict.fromkeys(name for each in names for name in each))


@dataclass(frozen=True, slots=True)
class SourcePart:
    """Rows that are committed together, where a load can be resumed: those of a file, or of a part of it.

    Attributes:
        identity: tells it from every other piece; it differs after the file changed.
        schema: the columns of its files, where these are known without them.
        named: the values of columns that the names of its directories give, which count.
    """

    path: str
    kind: str
    identity: str
    bytes: int
    fragment: Any
    schema: pa.Schema | None = None
    named: Mapping[str, pa.Scalar] = field(default_factory=dict)


def _datasets() -> Any:
    """`pyarrow.dataset`, which takes half a second to load: too long for those who load nothing."""
    return import_module("pyarrow.dataset")


# Finding


def find_files(sources: Sequence[Any], kind: str | None, version: int | None = None) -> list[Files]:
    """The files that paths, directories, patterns and URIs stand for, in the order of their names.

    Raises:
        InvalidOption: there are none, or it is not known of which kind they are.
    """
    found: list[Files] = []
    for source in sources:
        text = os.fspath(source)
        if kind == DELTA:
            found.append(_delta_files(text, version))
            continue
        if kind == ICEBERG:
            found.append(_iceberg_files(text, version))
            continue
        with naming_file(text, "read"):
            system, base, infos = _look(text)
        kinds = groupby(infos, lambda info: kind or kind_of(info.path))
        found += [Files(system, base, tuple(some), each) for each, some in kinds]
    return found


def _look(text: str) -> tuple[fs.FileSystem, str, list[fs.FileInfo]]:
    """The file system, the directory that was named, and the files."""
    system, path, pattern = _located(text)
    if pattern is None:
        (info,) = system.get_file_info([path])
        if info.type == fs.FileType.File:
            return system, path.rpartition("/")[0], [info]
        if info.type != fs.FileType.Directory:
            missing = info.type == fs.FileType.NotFound and text != "-"
            why = "No such file or directory" if missing else STREAM
            raise InvalidOption(f"{shown(text)} cannot be read: {why}", file=shown(text))
    below = system.get_file_info(fs.FileSelector(path, allow_not_found=True, recursive=True))
    infos = [info for info in below if info.type == fs.FileType.File and not _is_hidden(info.path, path)]
    if pattern is not None:
        infos = [info for info in infos if pattern.fullmatch(info.path)]
    if not infos:
        raise InvalidOption(f"{shown(text)} stands for no files; look at its spelling", file=shown(text))
    return system, path, sorted(infos, key=lambda info: info.path)


def _located(text: str) -> tuple[fs.FileSystem, str, re.Pattern[str] | None]:
    """A file system, a path on it, and for a pattern the regular expression of paths below that path."""
    text = with_home(whole_uri(text))
    address, _, query = text.partition("?") if "://" in text else (text, "", "")
    wild = _WILD.search(address)
    if wild and ("://" in text or not os.path.lexists(text)):
        head, cut, tail = address[: wild.start()].rpartition("/")
        tail = address[len(head) + len(cut) :]
    else:
        wild, head, tail = None, address, ""
    head = head or text[: text.startswith("/")]
    system, path = file_system_at(f"{head}?{query}" if query else head)
    if wild is None:
        return system, path, None
    below = "".join(_as_regex(part) for part in _WILD.split(tail))
    return system, path, re.compile(f"{re.escape(path.rstrip('/'))}/{below}")


def _as_regex(part: str) -> str:
    """A part of a pattern: a wildcard, or text that stands for itself."""
    if _WILD.fullmatch(part):
        return _WILD_AS_REGEX.get(part, part.replace("[!", "[^", 1))
    return re.escape(part)


def _is_hidden(path: str, base: str) -> bool:
    """True for what Spark and others leave alongside their data: `_SUCCESS`, `.part-0.crc`, `_delta_log`."""
    parts = path[len(base) :].split("/")
    return any(part.startswith((".", "_")) and "=" not in part for part in parts)


def _delta_files(text: str, version: int | None) -> Files:
    """The files of a Delta table at a version, read by its own library."""
    try:
        library = import_module("deltalake")
    except ModuleNotFoundError as error:
        raise InvalidOption(
            "a Delta table is read by the package 'deltalake': pip install 'elasticscan[delta]'", format=DELTA
        ) from error
    with naming_source(text, "read as a Delta table"):
        dataset = library.DeltaTable(text, version=version).to_pyarrow_dataset()
        infos = dataset.filesystem.get_file_info(dataset.files)
    return Files(dataset.filesystem, shown(text), tuple(infos), DELTA, dataset)


def _iceberg_files(text: str, version: int | None) -> Files:
    """The files of an Iceberg table at a snapshot; its own library opens them."""
    table = iceberg_table(text, version)
    infos = (fs.FileInfo(file.path, type=fs.FileType.File, size=file.bytes) for file in table.files)
    return Files(fs.LocalFileSystem(), shown(text), tuple(infos), ICEBERG, table)


# Reading


def schema_of(files: Files, rules: TextRules) -> pa.Schema:
    """The columns of files as a table can have them; of text they are guessed from its beginning."""
    if files.dataset is not None:
        return _as_table(files.dataset.schema)
    first = files.infos[0].path
    with naming_file(first, "read", _HINTS.get(files.kind, NO_HINTS)):
        guessed = _own_columns(files, rules)
        if files.kind == "csv" and not rules.nulls:
            plain = pyarrow.csv.ConvertOptions(column_types=dict(rules.types))
            usual = _inspected(files, _csv_format(rules, plain, GUESS_BYTES))
            _check_no_null_is_text(first, guessed, usual)
        if files.kind == "csv":
            _check_text_and_commas(first, guessed, rules)
            guessed = _keeping_digits(files, guessed, rules)
    named = directories.columns_of(files.base, (info.path for info in files.infos), guessed, rules.types)
    own = [field for field in guessed if field.name not in named.names]
    schema = _as_table(pa.schema([*own, *named]))
    if files.kind in TEXT:
        kinds = (rules.types.get(field.name) or _spark_time(field.type) for field in schema)
        return pa.schema(list(zip(schema.names, kinds, strict=True)))
    return schema


def _own_columns(files: Files, rules: TextRules) -> pa.Schema:
    """The columns that the files have themselves."""
    how = _format(files.kind, rules, None)
    if files.kind == "json":
        return json_lines.columns_of(files.system, files.infos[0].path, rules.types, GUESS_BYTES)
    return _inspected(files, how)


def _inspected(files: Files, how: Any) -> pa.Schema:
    """The columns of all files; a time that one has with fractions, and another without, is the same to us.

    Raises:
        SchemaMismatch: two files have a column in types that differ.
    """
    try:
        return _factory(files, how).inspect()
    except pa.ArrowTypeError:  # they differ
        pass
    except (pa.ArrowInvalid, OSError) as error:
        unread = _UNREAD.match(str(error))
        if unread is None:
            raise
        with naming_file(unread[1], "read", _HINTS.get(files.kind, NO_HINTS)):
            raise type(error)(str(error)[unread.end() :]) from error
    found: dict[str, tuple[pa.DataType, str]] = {}
    for info in files.infos:
        for each in _factory(replace(files, infos=(info,)), how).inspect():
            kind = _spark_time(each.type)
            before, path = found.get(each.name, (kind, info.path))
            if before == kind or pa.types.is_null(before):
                found[each.name] = kind, info.path
            elif not pa.types.is_null(kind):
                do = ": load them into tables of their own, or write them again with one type"
                if files.kind in TEXT:
                    do = f"; name its type: types={{{each.name!r}: 'string'}} or `--type {each.name}=string`"
                raise SchemaMismatch(
                    f"column {each.name!r} is {before} in {path} and {kind} in {info.path}{do}",
                    file=info.path,
                    column=each.name,
                )
    return pa.schema([(name, kind) for name, (kind, _) in found.items()])


def _as_table(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(table_type(field.type)) for field in schema])


def _factory(files: Files, how: Any) -> Any:
    return _datasets().FileSystemDatasetFactory(files.system, [info.path for info in files.infos], how)


def _format(kind: str, rules: TextRules, schema: pa.Schema | None) -> Any:
    """The format that reads files: text with the types of a table, or with guessed ones."""
    block = GUESS_BYTES if schema is None else BLOCK_BYTES
    types = dict(rules.types) if schema is None else {field.name: field.type for field in schema}
    if kind == "csv":
        options = pyarrow.csv.ConvertOptions(
            column_types=types,
            null_values=["", *rules.nulls],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        return _csv_format(rules, options, block)
    if rules.delimiter != COMMA or rules.columns is not None:
        raise InvalidOption(
            f"delimiter and column_names are for CSV, and the files are {kind}; leave them out",
            option="delimiter" if rules.columns is None else "column_names",
        )
    if kind == "json":
        parse = pyarrow.json.ParseOptions(explicit_schema=pa.schema(list(types.items())) if types else None)
        return _datasets().JsonFileFormat(
            parse_options=parse, read_options=pyarrow.json.ReadOptions(block_size=block)
        )
    return getattr(_datasets(), _BINARY[kind])()


def _csv_format(rules: TextRules, convert: Any, block_bytes: int) -> Any:
    return _datasets().CsvFileFormat(
        parse_options=rules.parsing(), convert_options=convert, read_options=rules.reading(block_bytes)
    )


def _check_no_null_is_text(path: str, guessed: pa.Schema, usual: pa.Schema) -> None:
    """Refuse a column that would be text only for the sake of an NA or NULL among its numbers."""
    for strict, lenient in zip(guessed, usual, strict=True):
        if strict.type != lenient.type and not pa.types.is_null(lenient.type):
            raise SchemaMismatch(
                f"{path} has text among the values of column {strict.name!r}, which else are {lenient.type}; "
                f"say what stands for null, as in nulls=['NA'] or `--null NA`, or that it is text: "
                f"types={{{strict.name!r}: 'string'}} or `--type {strict.name}=string`",
                file=path,
                column=strict.name,
            )


def _check_text_and_commas(path: str, guessed: pa.Schema, rules: TextRules) -> None:
    """Refuse fields that would be one for want of commas, and text that would be bytes."""
    apart = _NO_COMMA.search(guessed.names[0]) if len(guessed) == 1 else None
    if apart is not None:
        raise SchemaMismatch(
            f"{path} has {apart[0]!r} between its fields, no {rules.delimiter!r}: say delimiter={apart[0]!r} "
            f"or `--delimiter {apart[0]!r}`",
            file=path,
        )
    for each in guessed:
        if pa.types.is_binary(each.type) and each.name not in rules.types:
            raise SchemaMismatch(
                f"{path} has text in column {each.name!r} that is not UTF-8: convert the file (`iconv -f "
                f"latin1 -t utf-8`), or keep its bytes: types={{{each.name!r}: 'binary'}} or "
                f"`--type {each.name}=binary`",
                file=path,
                column=each.name,
            )


def _keeping_digits(files: Files, guessed: pa.Schema, rules: TextRules) -> pa.Schema:
    """The guessed columns, text where numbers would lose digits: the zeros of 01234, or what floats round."""
    patterns = {
        field.name: _LOST_DIGITS if pa.types.is_floating(field.type) else _LOST_ZEROS
        for field in guessed
        if field.name not in rules.types
        and (pa.types.is_integer(field.type) or pa.types.is_floating(field.type))
    }
    if not patterns:
        return guessed
    texts = pa.schema([(name, pa.string()) for name in patterns])
    how = _format(files.kind, replace(rules, types=dict.fromkeys(patterns, pa.string())), None)
    first = next(iter(_factory(files, how).finish(texts).get_fragments()))
    batches = first.to_batches(batch_size=GUESS_BYTES, batch_readahead=0, fragment_readahead=0)
    begin = next(iter(batches), texts.empty_table())
    lost = {
        name for name in patterns if pc.any(pc.match_substring_regex(begin[name], patterns[name])).as_py()
    }
    return pa.schema([field.with_type(pa.string()) if field.name in lost else field for field in guessed])


def table_type(kind: pa.DataType, depth: int = 0) -> pa.DataType:
    """The type that a table gets for values of a type that it cannot have: text where no value was seen."""
    t = pa.types
    if depth > MAX_NESTING:  # which the check of the table's definition refuses
        return kind
    if t.is_null(kind) or t.is_string_view(kind) or t.is_large_string(kind):
        return pa.string()
    if t.is_binary_view(kind) or t.is_large_binary(kind):
        return pa.binary()
    if t.is_dictionary(kind):
        return table_type(kind.value_type, depth)
    if t.is_list(kind) or t.is_large_list(kind) or t.is_list_view(kind) or t.is_large_list_view(kind):
        return pa.list_(kind.value_field.with_type(table_type(kind.value_type, depth + 1)))
    if t.is_struct(kind):
        return pa.struct([part.with_type(table_type(part.type, depth + 1)) for part in kind])
    return kind


def _spark_time(kind: pa.DataType) -> pa.DataType:
    """Times that were read of text have the microseconds of Spark."""
    return timed(kind, lambda each: pa.timestamp("us", each.tz))


def check_rules(found: Sequence[Files], rules: TextRules, schema: pa.Schema) -> None:
    """Refuse rules that nothing would follow.

    Raises:
        InvalidOption: one names a column that is not there, or is for files of another kind.
    """
    kinds = {files.kind for files in found}
    if rules.nulls and "csv" not in kinds:
        raise InvalidOption(
            f"nulls are for CSV, and the files are {' and '.join(sorted(kinds))}; leave them out",
            option="nulls",
        )
    named = {name for files in found for name in files.named_columns()}
    for name in rules.types:
        if name not in schema.names:
            hint = suggest(name, schema.names) or f"; there are {', '.join(schema.names)}"
            raise InvalidOption(f"types name a column {name!r}, which is not there{hint}", option="types")
        if kinds.isdisjoint(TEXT) and name not in named:
            raise InvalidOption(
                f"types are for CSV, JSON and the names of directories, and column {name!r} comes of "
                f"{' and '.join(sorted(kinds))}, which have types of their own; leave it out, or make the "
                "table with another type first (create_table)",
                option="types",
            )


def pieces_of(files: Files, schema: pa.Schema, rules: TextRules, *, split: bool) -> Iterator[SourcePart]:
    """The files, to be read as rows of a table; large ones in pieces, if they may be split.

    Raises:
        SchemaMismatch: the names of their directories give columns that the table does not have.
    """
    if files.kind == ICEBERG:
        for file in files.dataset.files:
            yield SourcePart(file.path, ICEBERG, file.identity, file.bytes, file, files.dataset.schema)
        return
    if files.dataset is not None:
        fragments, known = files.dataset.get_fragments(), files.dataset.schema.remove_metadata()
    else:
        named = files.named_columns()
        unknown = [name for name in named if name not in schema.names]
        if unknown:
            raise SchemaMismatch(
                f"directories of {files.base} are named {unknown[0]}=…, and the table has no such column; it "
                f"has {', '.join(schema.names)}. Add it, or name the directories below, or the files",
                unknown=unknown,
            )
        inside = pa.schema([field for field in schema if field.name not in named])
        fragments = _factory(files, _format(files.kind, rules, inside)).finish(schema).get_fragments()
        known = None
    infos = {info.path: info for info in files.infos}
    for fragment in fragments:
        info = infos[fragment.path]
        values = {} if known is not None else directories.values_of(files.base, info.path, schema)
        identity = _identity(info, files.system)
        whole = SourcePart(info.path, files.kind, identity, info.size or 0, fragment, known, values)
        if split and whole.bytes > PIECE_BYTES and isinstance(fragment, _datasets().ParquetFileFragment):
            yield from _parts(whole)
        else:
            yield whole


def _identity(info: fs.FileInfo, system: fs.FileSystem) -> str:
    named = f"{system.type_name}\0{info.path}\0{info.size}\0{info.mtime_ns}"
    return hashlib.blake2b(named.encode(), digest_size=16).hexdigest()


def _parts(whole: SourcePart) -> Iterator[SourcePart]:
    """A Parquet file as pieces of whole row groups."""
    some: list[int] = []
    size = 0
    with naming_file(whole.path, "read"):
        groups = whole.fragment.row_groups
    for number, group in enumerate(groups):
        some.append(group.id)
        size += group.total_byte_size
        if size >= PIECE_BYTES or number == len(groups) - 1:
            name = f"{whole.identity}:{some[0]}-{some[-1]}"
            part = whole.fragment.subset(row_group_ids=some)
            share = whole.bytes * len(some) // len(groups)
            yield SourcePart(whole.path, whole.kind, name, share, part, whole.schema, whole.named)
            some, size = [], 0


def read_files(sources: Sequence[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of files with the columns that these have, text as the types of a schema.

    Raises:
        InvalidOption, SchemaMismatch: a file is not there, or cannot be read.
    """
    rules = TextRules()
    for files in find_files(sources, None):
        for piece in pieces_of(files, schema, rules, split=False):
            yield from read_piece(piece, schema)


def rows_of(piece: SourcePart) -> int | None:
    """The number of rows, where a footer tells it."""
    if piece.kind in TEXT:
        return None
    with _reading(piece):
        return piece.fragment.count_rows()  # type: ignore[no-any-return]


def read_piece(piece: SourcePart, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a piece with the columns that its file has, and those of its directories' names."""
    with _reading(piece):
        if piece.kind == ICEBERG:
            yield from piece.fragment.to_batches()
            return
        if piece.kind == "json":
            at = (piece.fragment.filesystem, piece.fragment.path)
            batches = json_lines.rows_of(*at, schema, BLOCK_BYTES, GUESS_BYTES)
        else:
            columns = (piece.schema or piece.fragment.physical_schema).remove_metadata()
            own = pa.schema([field for field in columns if field.name not in piece.named])
            batches = piece.fragment.to_batches(
                schema=own, batch_size=BATCH_ROWS, batch_readahead=2, fragment_readahead=1
            )
        for batch in batches:
            yield _with_constants(batch, piece.named)


def _with_constants(batch: pa.RecordBatch, values: Mapping[str, pa.Scalar]) -> pa.RecordBatch:
    """A batch with columns of one value each."""
    batch = batch.drop_columns([name for name in values if name in batch.schema.names])
    for name, value in values.items():
        batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
    return batch


@contextmanager
def _reading(piece: SourcePart) -> Iterator[None]:
    with naming_source(piece.path, "read"), naming_file(piece.path, "read", _HINTS.get(piece.kind, NO_HINTS)):
        yield
