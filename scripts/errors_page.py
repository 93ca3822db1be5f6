"""Makes docs/errors.md of the classes in base/errors.py: python scripts/errors_page.py > docs/errors.md

The first line of a class's docstring says when the error is met, the others what to do about it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from elasticscan.base import errors
from elasticscan.base.errors import ElasticScanError, OperatorNeeded, StartAgain, TryAgain, UsageError
from elasticscan.cli.output import EXIT_CODES

HEADINGS = {
    UsageError: "Mend the call",
    TryAgain: "Try again",
    StartAgain: "Start again with what is there now",
    OperatorNeeded: "Somebody has to look at the store or its disks",
}
HEAD = """# Errors and exit codes

<!-- Made of the classes in base/errors.py by `python scripts/errors_page.py > docs/errors.md`. -->

Whatever goes wrong with a store, its data or a request is an `ElasticScanError`, and of one of four kinds,
by what the caller should do. Its text begins with its code and says what happened and what to do next;
`code`, `message` and `fields` are attributes. All classes are in `elasticscan.errors`. Names that are nearly
right, or of another library, are answered with the right one; all others are an `AttributeError` of Python
(`store.xyzzy`). An argument that a method does not take (`table.scan(xyzzy=1)`) is answered with those that
it takes; that error is a `TypeError`, too.

```python
import elasticscan
from elasticscan.errors import ElasticScanError, TryAgain

store = elasticscan.create("errors.store", shards=["s1"])
store.create_table("trips", {"id": [1, 2]}, primary_key="id")
try:
    store.table("trip")
except TryAgain:
    pass  # the same call may succeed later
except ElasticScanError as error:
    print(error.code, error.fields)
    print(error)
```
```
ES_TABLE_NOT_FOUND {'table': 'trip'}
[ES_TABLE_NOT_FOUND] the store has no table 'trip'; did you mean 'trips'?
```

Where a mount, a permission or a network decides (¹ below), the text ends with the user and host that met it:
of many executors one may lack a mount. Spark wraps what is raised in its Python processes: the code then
stands in the last line of the traceback that it shows. The setting
`spark.sql.execution.pyspark.udf.hideTraceback.enabled` = `true` leaves that traceback out. PySpark also logs
an error with a place in a query as a long line of JSON before it, which, behind `import pyspark.sql`,
`logging.getLogger("SQLQueryContextLogger").setLevel("CRITICAL")` ends; `catalog.sql` logs none.

| exit code of a command | means | kind |
|---|---|---|
| 0 | done | |
| 1 | something nobody foresaw; its traceback follows | |
"""
MORE = {
    2: ", and options that cannot be read",
    5: "; also what `verify`, `repair` and `keep --once` found",
}
TAIL = """| 130 | stopped with Ctrl-C; nothing is half done | |

The message goes to stderr; with `--json` stderr has one line instead:
`{"error": {"code": …, "message": …, "fields": {…}, "exit_code": …}}`.
"""


def page() -> str:
    codes = [(EXIT_CODES[kind], words, kind.__name__) for kind, words in HEADINGS.items()]
    lines = [
        f"| {code} | {words[0].lower()}{words[1:]}{MORE.get(code, '')} | `{name}` |\n"
        for code, words, name in codes
    ]
    return "".join([HEAD, *lines, TAIL, *map(_section, HEADINGS)])


def _section(kind: type[ElasticScanError]) -> str:
    return f"""
## {HEADINGS[kind]}

`{kind.__name__}`, exit code {EXIT_CODES[kind]}.

| code | class | when | what to do |
|---|---|---|---|
{"".join(_row(each) for each in below(kind))}"""


def below(kind: type[ElasticScanError]) -> Iterator[type[ElasticScanError]]:
    """All public classes below one, in the order of the file."""
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:
            yield each
            yield from below(each)


def _row(kind: type[ElasticScanError]) -> str:
    when, *do = [line.strip() for line in (kind.__doc__ or "").splitlines()]
    host = " ¹" if kind.names_its_host else ""
    return f"| `{kind.code}`{host} | `{kind.__name__}` | {when} | {' '.join(do)} |\n"


if __name__ == "__main__":
    sys.stdout.write(page())
