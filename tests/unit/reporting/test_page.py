"""A page that needs no other file."""

from __future__ import annotations

import re

from embedkit.reporting.page import build_page, facts, figures


def test_a_page_escapes_its_contents_and_needs_no_other_file():
    page = build_page("a <b>", "c & d", [figures([("x<", "y>")]), "", facts("F", [("n", "<v>")])])
    assert "<h1>a &lt;b&gt;</h1>" in page
    assert "c &amp; d" in page
    assert "<dt>x&lt;</dt><dd>y&gt;</dd>" in page
    assert "<code>&lt;v&gt;</code>" in page
    assert not re.search(r'(?:src|href)="|url\(|@import|<script', page)
