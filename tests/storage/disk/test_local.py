"""The kind of disk for each form of a root."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from elasticscan.base.errors import InvalidOption
from elasticscan.storage.disk import LocalDisk, open_disk


@pytest.mark.parametrize(
    ("root", "place"),
    [
        ("s3://bucket", ("bucket", "")),
        ("s3://bucket/", ("bucket", "")),
        ("s3://bucket/x", ("bucket", "x/")),
        ("s3a://bucket//x/./y/../z/", ("bucket", "x/z/")),
        ("S3://bucket/a%20b/ü", ("bucket", "a b/ü/")),
    ],
)
def test_a_path_is_a_directory_and_s3_a_bucket_and_a_prefix(
    tmp_path: Path, root: str, place: tuple[str, str]
) -> None:
    pytest.importorskip("botocore", reason="pip install 'elasticscan[s3]'")
    from elasticscan.storage.disk.objects import ObjectDisk, parse_root  # noqa: PLC0415 - it imports botocore

    assert isinstance(open_disk(str(tmp_path)), LocalDisk)
    disk = open_disk(root)
    assert isinstance(disk, ObjectDisk) and disk.is_far, "nothing is asked before a file is"
    assert parse_root(root) == place


@pytest.mark.parametrize(
    ("root", "says"),
    [
        *(
            (f"{scheme}://minio:9000/bucket/x", "write `s3://BUCKET/PREFIX`")
            for scheme in ("http", "s3n", "gs")
        ),
        ("https://key:hidden@minio/bucket", "write `s3://BUCKET/PREFIX`"),
        ("s3://KEY:hidden@bucket/x", "AWS_ENDPOINT_URL"),
        ("s3://KEY@bucket/x", "AWS_ENDPOINT_URL"),
        ("s3://bucket/x?secret_key=hidden", "AWS_ENDPOINT_URL"),
        ("s3a://bucket/x?endpoint_override=http://a:hidden@host", "AWS_ENDPOINT_URL"),
        ("s3://bucket/x?region=eu-west-1", "AWS_ENDPOINT_URL"),
        ("s3://bucket:9000/x", "AWS_ENDPOINT_URL"),
        ("s3://bucket/x#y", "AWS_ENDPOINT_URL"),
        ("s3:///x", "AWS_ENDPOINT_URL"),
    ],
)
def test_other_places_and_roots_that_say_more_are_refused_with_what_to_write(root: str, says: str) -> None:
    with pytest.raises(InvalidOption, match=says) as refused:
        open_disk(root)
    assert "hidden" not in str(refused.value)


def test_a_package_is_named_where_it_is_missing_and_not_loaded_where_no_root_needs_it() -> None:
    code = (
        "import sys, elasticscan; print('botocore' in sys.modules); sys.modules['botocore'] = None\n"
        "from elasticscan.base.errors import InvalidOption\n"
        "from elasticscan.storage.disk import open_disk\n"
        "try: open_disk('s3://bucket/x')\n"
        "except InvalidOption as error: print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded, message = result.stdout.split("\n", 1)
    assert loaded == "False" and "pip install 'elasticscan[s3]'" in message
