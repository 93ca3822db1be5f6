"""The examples of docs/streaming.md and docs/spark-connect.md, with the results that they promise.

    python guide.py "Spark Connect" DIRECTORY

runs those of a section in a process of their own, with DIRECTORY in place of /data.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests import pages

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = (DOCS / "streaming.md", DOCS / "spark-connect.md")
APART = ("Spark Connect", "Declarative Pipelines")  # sections that cannot share a classic session


def sections() -> Mapping[str, str]:
    """The text under each heading of the second level."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    first, *others = re.split(r"^## ", text, flags=re.MULTILINE)
    return {"": first} | {text.partition("\n")[0]: text for text in others}


def blocks(section: str | None = None, language: str = "python") -> list[tuple[str, str | None]]:
    """Code, each block with the output right under it, if any. By default all that shares a session."""
    texts = [text for name, text in sections().items() if section in (None, name)]
    if section is None:
        texts = [text for name, text in sections().items() if name not in APART]
    return [block for text in texts for block in pages.blocks(text, language)]


def run(code: str, data: Path, names: dict[str, Any]) -> list[str]:
    """Run a block; what came out otherwise than it promises."""
    return pages.run(code.replace('"/data/', f'"{data}/'), names)


def main() -> None:
    names: dict[str, Any] = {}
    found = blocks(sys.argv[1])
    wrong = [each for code, _ in found for each in run(code, Path(sys.argv[2]), names)]
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    main()
