"""Python runs this first in a process that a test started: see the front page of this folder."""

import importlib.util
import os
from pathlib import Path

if server := os.environ.get("ELASTICSCAN_TESTS_AT"):
    page = importlib.util.spec_from_file_location("at_server", Path(__file__).parent / "__init__.py")
    assert page is not None and page.loader is not None
    module = importlib.util.module_from_spec(page)
    page.loader.exec_module(module)
    module.redirect(server)
