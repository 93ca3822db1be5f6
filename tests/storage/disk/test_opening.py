"""Which disk a root asks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from elasticscan.base.errors import InvalidOption
from elasticscan.storage.disk import LocalDisk, open_disk


def test_a_path_is_a_directory(tmp_path: Path) -> None:
    assert isinstance(open_disk(str(tmp_path)), LocalDisk)


@pytest.mark.parametrize("root", ["s3://bucket/x", "s3a://bucket/x", "S3://bucket"])
def test_s3_and_s3a_are_objects_and_nothing_is_asked_before_a_file_is(root: str) -> None:
    pytest.importorskip("botocore", reason="pip install 'elasticscan[s3]'")
    disk = open_disk(root)
    assert type(disk).__name__ == "ObjectDisk" and disk.is_far


@pytest.mark.parametrize(
    "root",
    ["http://minio:9000/bucket/x", "https://key:hidden@minio/bucket", "s3n://bucket/x", "gs://bucket/x"],
)
def test_other_places_are_refused_with_what_to_write(root: str) -> None:
    with pytest.raises(InvalidOption, match="write `s3://BUCKET/PREFIX`") as refused:
        open_disk(root)
    assert "hidden" not in str(refused.value)


def test_a_missing_package_is_reported_by_its_name() -> None:
    code = (
        "import sys; sys.modules['botocore'] = None\n"
        "from elasticscan.base.errors import InvalidOption\n"
        "from elasticscan.storage.disk import open_disk\n"
        "try: open_disk('s3://bucket/x')\n"
        "except InvalidOption as error: print(error)\n"
    )
    message = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'elasticscan[s3]'" in message


def test_nobody_pays_for_a_package_that_no_root_needs() -> None:
    code = "import sys, elasticscan; print('botocore' in sys.modules)"
    message = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert message.strip() == "False"
