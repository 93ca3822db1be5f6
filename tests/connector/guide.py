"""The examples of docs/spark-connect.md, with the results that they promise.

    python guide.py "Spark Connect" DIRECTORY

runs those of a section in a process of their own, with DIRECTORY in place of /data.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from tests import pages


def blocks(section: str, language: str = "python") -> list[tuple[str, str | None]]:
    """The code under a heading of the second level, each block with the output right under it, if any."""
    text = (pages.ROOT / "docs" / "spark-connect.md").read_text(encoding="utf-8")
    parts = {part.partition("\n")[0]: part for part in re.split(r"^## ", text, flags=re.MULTILINE)}
    return pages.blocks(parts[section], language)


def main(section: str, data: str) -> None:
    names: dict[str, Any] = {}
    found = [code.replace('"/data/', f'"{data}/') for code, _ in blocks(section)]
    wrong = [each for code in found for each in pages.run(code, names)]
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    main(*sys.argv[1:])
