"""What siblings share is hashed once, to what each of them would have hashed it."""

from __future__ import annotations

import pytest

from policies.recognition.chains import block_chain
from policies.recognition.families import MAX_HEADS, Families, FamilyRecord, Heads
from policies.types import BLOCK_CHARS

KEY, TOOLS, SYSTEM = b"key", (b"tool " * 200, b"other " * 200), b"system " * 300


def test_a_head_has_the_blocks_of_its_text_in_either_order() -> None:
    head = Heads().of(KEY, TOOLS, SYSTEM)
    assert head.blocks(tools_first=True) == block_chain(KEY, (*TOOLS, SYSTEM))
    assert head.blocks(tools_first=False) == block_chain(KEY, (SYSTEM, *TOOLS))


def test_heads_are_told_apart_by_key_tools_and_system_text() -> None:
    heads = Heads()
    requested = [
        (KEY, TOOLS, SYSTEM),
        (b"other", TOOLS, SYSTEM),
        (KEY, TOOLS[:1], SYSTEM),
        (KEY, TOOLS, SYSTEM + b"."),
    ]
    found = [heads.of(*one) for one in requested]
    assert len({id(head) for head in found}) == len({head.family_id for head in found}) + 1 == 4
    assert all(heads.of(*one) is head for one, head in zip(requested, found, strict=True))


def test_the_head_that_was_asked_for_last_stays() -> None:
    heads = Heads()
    first = heads.of(KEY, TOOLS, SYSTEM)
    for number in range(MAX_HEADS - 1):
        heads.of(KEY, (), b"%d" % number)
    assert heads.of(KEY, TOOLS, SYSTEM) is first
    heads.of(KEY, (), b"one more")
    assert heads.of(KEY, TOOLS, SYSTEM) is first


@pytest.mark.parametrize("num_blocks", [10, 255, 256, 700, 5_000])
def test_a_family_is_found_by_few_of_its_blocks_however_long_its_system_text(num_blocks: int) -> None:
    """Eight bytes of a mark take a hundred in the table: a prompt of megabytes would leave a good part of it."""
    families = Families(limit=100)
    tool = b"".join(b"%0*d" % (BLOCK_CHARS, number) for number in range(num_blocks))

    def found(shared: float, length: float = 1.0) -> FamilyRecord:
        """The family of tools that share this much of the first ones', and are this long."""
        kept = int(shared * len(tool))
        other = (tool[:kept] + b"another end " * len(tool))[: int(length * len(tool))]
        return families.find(KEY, (other,), b"system", [], None)[0]

    first = found(1.0)
    assert 0 < len(first.marks) <= 2**8 + 1
    assert found(0.75) is first
    assert found(0.9, 1.5) is first
    assert found(0.6, 0.7) is first
    assert found(0.3) is not first
