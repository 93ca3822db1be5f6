"""Pictures and listings are whole documents, in which names are text."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from elasticscan.base.drawing import code, listing, picture

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '<script>alert(1)</script> & "more"'


def test_a_picture_shows_its_title_as_text() -> None:
    assert ET.fromstring(picture(1, 1, HOSTILE, [])).findtext(f"{SVG}title") == HOSTILE


def test_a_listing_shows_numbers_with_their_thousands_and_text_as_text() -> None:
    table = ET.fromstring(listing(("name", HOSTILE), [(HOSTILE, 12_345), (True, 1.5)]))
    assert [cell.text for cell in table.iter("td")] == [HOSTILE, "12,345", "True", "1.5"]
    assert [cell.text for cell in table.iter("th")] == ["name", HOSTILE]
    assert ET.fromstring(code(HOSTILE)).text == HOSTILE
