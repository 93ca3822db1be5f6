"""Generate docs/errors.md from the classes in base/errors.py: python scripts/errors_page.py > docs/errors.md

The first line of a class's docstring says when the error is raised, the others what to do about it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from elasticscan.base import errors
from elasticscan.base.errors import ElasticScanError, OperatorNeeded, StartAgain, TryAgain, UsageError
from elasticscan.cli.output import EXIT_CODES

HEADINGS = {
    UsageError: "Correct the call",
    TryAgain: "Try again",
    StartAgain: "Start again with what is there now",
    OperatorNeeded: "An operator must look at the store or its disks",
}
HEAD = """# Errors and exit codes

<!-- Made of the classes in base/errors.py by `python scripts/errors_page.py > docs/errors.md`. -->

Every failure of a store, its data or a request is an `ElasticScanError`, of one of four kinds by what the
caller should do. Its text begins with its code and has one clause and one next step; `code`, `message` and
`fields` are attributes. All classes are in `elasticscan.errors`. Where a name does not exist, the message
suggests the nearest one. Wrong types and unknown arguments may also raise Python's own `TypeError`,
`ValueError` or `AttributeError`.

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
ES_NOT_FOUND {'table': 'trip', 'kind': 'table'}
[ES_NOT_FOUND] the store has no table 'trip'; did you mean 'trips'?
```

If an error depends on a mount, a permission or a network (¹ below, and a store that is not found), the text
ends with the user and the host: one of many executors may lack a mount. Spark wraps errors of its
Python processes: the code is in the last line of the traceback that it shows. The setting
`spark.sql.execution.pyspark.udf.hideTraceback.enabled` = `true` hides that traceback. PySpark also logs an
error with a place in a query as a long line of JSON; after `import pyspark.sql`,
`logging.getLogger("SQLQueryContextLogger").setLevel("CRITICAL")` disables that.

| exit code of a command | means | kind |
|---|---|---|
| 0 | done | |
| 1 | unexpected error; its traceback follows | |
"""
MORE = {
    2: ", or an option that cannot be parsed",
    5: "; also what `verify`, `repair` and `keep --once` found",
}
TAIL = """| 130 | stopped with Ctrl-C; nothing is left half done (0 from `keep` and `ui`) | |

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
    """Yield all public subclasses of a class, in the order of the file."""
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
