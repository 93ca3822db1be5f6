"""Pictures and listings are whole documents, in which names are text."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from elasticscan.base.drawing import bars, code, listing, picture

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '<script>alert(1)</script> & "more"'


def test_the_longest_bar_fills_the_width_and_each_says_its_value() -> None:
    drawn = ET.fromstring(bars(HOSTILE, [("a", 10, 0), (HOSTILE, 1_000, 1), ("none", 0, 2)]))
    widths = [float(rect.get("width") or 0) for rect in drawn.findall(f"{SVG}rect")[1:]]
    assert widths == [4.2, 420, 0]
    texts = [text.text for text in drawn.findall(f"{SVG}text")]
    assert texts == [HOSTILE, "a", "10", HOSTILE, "1,000", "none", "0"]
    assert drawn.get("width") and drawn.get("height") == "80"


def test_bars_of_nothing_are_a_picture_too() -> None:
    assert ET.fromstring(bars("nothing", [])).tag == f"{SVG}svg"
    assert ET.fromstring(picture(1, 1, HOSTILE, [])).findtext(f"{SVG}title") == HOSTILE


def test_a_listing_shows_numbers_with_their_thousands_and_text_as_text() -> None:
    table = ET.fromstring(listing(("name", HOSTILE), [(HOSTILE, 12_345), (True, 1.5)]))
    assert [cell.text for cell in table.iter("td")] == [HOSTILE, "12,345", "True", "1.5"]
    assert [cell.text for cell in table.iter("th")] == ["name", HOSTILE]
    assert ET.fromstring(code(HOSTILE)).text == HOSTILE
