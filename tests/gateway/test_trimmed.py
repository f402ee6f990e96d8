import sys

import orjson

from gateway.core.fields import trimmed


def test_text_that_is_kept_takes_no_more_memory_than_it_has_bytes() -> None:
    reserved = orjson.dumps({"id": "x" * 700, "numbers": list(range(50))})
    text = trimmed(reserved)
    assert text == reserved
    assert sys.getsizeof(text) == sys.getsizeof(b"") + len(text)
