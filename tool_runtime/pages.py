"""The readable text of an HTML page: title, headings, paragraphs, list items, without scripts and styles.

Not a parser: each character is looked at a fixed number of times, whatever the page. The parser of the standard
library can be made to take minutes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

_TAG = re.compile(r"<([/!?a-zA-Z][^<>]*)>")
_NAME = re.compile(r"/?[a-z][^\s/>]*")
_UNSEEN = {"script", "style", "noscript", "template", "svg", "iframe", "object"}
_BREAKS = {
    *("address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "fieldset", "figcaption"),
    *("figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol"),
    *("p", "pre", "section", "table", "title", "tr", "ul"),
}
_MARKS = {"li": "- ", "h1": "# ", "h2": "## ", "h3": "### ", "title": "Title: ", "td": " ", "th": " "}


def text_of(html: str) -> str:
    """Lines of text."""
    lines = (re.sub(r"\s+", " ", unescape(line)).strip() for line in "".join(_pieces(html)).split("\n"))
    return "\n".join(line for line in lines if line.strip("-# "))


def _pieces(html: str) -> Iterator[str]:
    """Text between tags, with a line feed where a tag breaks the line."""
    unseen = ""
    parts = iter(_TAG.split("".join(_without_comments(html))))
    for text in parts:
        if not unseen:
            yield re.sub(r"\s+", " ", text)
        name = _name(next(parts, ""))
        if unseen:
            unseen = "" if name == f"/{unseen}" else unseen
        elif name in _UNSEEN:
            unseen = name
        elif name.removeprefix("/") in _BREAKS:
            yield "\n"
        if not unseen:
            yield _MARKS.get(name, "")


def _name(tag: str) -> str:
    found = _NAME.match(tag.lower())
    return found[0] if found else ""


def _without_comments(html: str) -> Iterator[str]:
    at = 0
    while (start := html.find("<!--", at)) >= 0:
        yield html[at:start]
        end = html.find("-->", start)
        at = len(html) if end < 0 else end + 3
    yield html[at:]
