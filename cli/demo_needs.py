"""What the demo needs beyond the command line: Java, PySpark."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from elasticscan.base.errors import UsageError

JAVA = 17
_HINT = (
    "install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; Fedora: dnf install "
    "java-21-openjdk-headless; macOS: brew install openjdk@17) or set JAVA_HOME to one that is installed"
)


class NotInstalled(UsageError):
    """Something that only this command needs is missing."""

    code = "ES_NOT_INSTALLED"


def check_needs() -> None:
    """Raises `NotInstalled`, saying what to install, before anything was begun."""
    if importlib.util.find_spec("pyspark") is None:
        raise NotInstalled("the demo runs Spark; run pip install 'elasticscan[demo]'", package="pyspark")
    check_java()


def check_java() -> None:
    """Look for Java where Spark does: JAVA_HOME first, then the PATH."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        raise NotInstalled(
            f"Spark needs Java {JAVA} or newer, and there is no java on the PATH: {_HINT}", package="java"
        )
    try:
        ran = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotInstalled(
            f"Spark needs Java {JAVA} or newer, and {java} does not run: {_HINT}", package="java"
        ) from error
    major = java_major(ran.stderr + ran.stdout)
    if major is None or major < JAVA:
        raise NotInstalled(
            f"Spark needs Java {JAVA} or newer, and {java} is Java {major or 'of no known version'}: {_HINT}",
            package="java",
        )


def java_major(text: str) -> int | None:
    """17 from `openjdk version "17.0.15"`, and 8 from `java version "1.8.0_392"`."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else None
