"""`python -m elasticscan`: the command line, where its script is not on the path."""

from __future__ import annotations

from elasticscan.cli import main

main()
