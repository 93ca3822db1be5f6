"""Pictures are whole documents, in which names are text."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from elasticscan.base.drawing import picture

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '<script>alert(1)</script> & "more"'


def test_a_picture_shows_its_title_as_text() -> None:
    assert ET.fromstring(picture(1, 1, HOSTILE, [])).findtext(f"{SVG}title") == HOSTILE
