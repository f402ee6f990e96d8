from __future__ import annotations

import pytest

from tool_runtime.sandbox import seccomp


def test_there_is_no_filter_for_an_architecture_without_a_list() -> None:
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.program("riscv64")
