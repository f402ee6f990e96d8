"""What siblings share is hashed once, to what each of them would have hashed it."""

from __future__ import annotations

from policies.chains import block_chain
from policies.heads import MAX_HEADS, Heads

KEY, TOOLS, SYSTEM = b"key", (b"tool " * 200, b"other " * 200), b"system " * 300


def test_a_head_has_the_blocks_of_its_text_in_either_order() -> None:
    head = Heads().of(KEY, TOOLS, SYSTEM)
    assert head.blocks(tools_first=True) == block_chain(KEY, (*TOOLS, SYSTEM))
    assert head.blocks(tools_first=False) == block_chain(KEY, (SYSTEM, *TOOLS))


def test_heads_are_told_apart_by_key_tools_and_system_text() -> None:
    heads = Heads()
    asked = [
        (KEY, TOOLS, SYSTEM),
        (b"other", TOOLS, SYSTEM),
        (KEY, TOOLS[:1], SYSTEM),
        (KEY, TOOLS, SYSTEM + b"."),
    ]
    found = [heads.of(*one) for one in asked]
    assert len({id(head) for head in found}) == len({head.family_id for head in found}) + 1 == 4
    assert all(heads.of(*one) is head for one, head in zip(asked, found, strict=True))


def test_the_head_that_was_asked_for_last_stays() -> None:
    heads = Heads()
    first = heads.of(KEY, TOOLS, SYSTEM)
    for number in range(MAX_HEADS - 1):
        heads.of(KEY, (), b"%d" % number)
    assert heads.of(KEY, TOOLS, SYSTEM) is first
    heads.of(KEY, (), b"one more")
    assert heads.of(KEY, TOOLS, SYSTEM) is first
