"""SGLang's real server on a CPU: `python sglang_cpu.py --model-path DIR --port 8200 [flags of SGLang]`.

Runs inside the SGLang environment. What SGLang's own requirements want of CUDA is not installed. The names that
its HTTP server, scheduler, radix cache and CPU model runner import of that are stood in for here, one by one, so
that a package that is really missing still fails loudly.
"""

# mypy: disable-error-code="import-not-found,import-untyped"

import enum
import importlib.abc
import importlib.machinery
import multiprocessing
import os
import sys
import types
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "DO_NOT_TRACK", "SGLANG_USE_CPU_ENGINE"):
    os.environ.setdefault(name, "1")
os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # two threads on two busy cores wait for each other: 100 times slower

SCRIPT_HEADER = "x-scripted-regex"
GRAMMARS = ("json_schema", "ebnf", "structural_tag", "regex")
STUBBED = "torchvision"
"""Imported for images, which no test sends."""
DEFAULTS = {
    "--device": "cpu",
    "--attention-backend": "torch_native",
    "--sampling-backend": "pytorch",
    "--grammar-backend": "xgrammar",
    "--dtype": "float32",
    "--disable-cuda-graph": None,
    "--disable-overlap-schedule": None,
}
"""Flags without which it does not run here."""


class InterpolationMode(enum.Enum):
    """Of torchvision: transformers builds a table of its members."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


class _Stub(types.ModuleType):
    """Any name can be imported, any class derived from; nothing in it works."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return InterpolationMode if name == "InterpolationMode" else type(name, (), {"__module__": self.__name__})


class _Kernels(types.ModuleType):
    """The compiled kernels as the CPU platform imports them: names for speculative decoding, which is off. All
    others are missing, those for AMX too: then SGLang computes in plain torch."""

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_cpu"):
            return None
        raise AttributeError(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        is_stubbed = fullname.partition(".")[0] == STUBBED
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if is_stubbed else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__version__"] = "0"


def install_stubs() -> None:
    from transformers.utils import import_utils

    import_utils.is_torchvision_available()  # asked before the stub is there, it remembers that there is none
    sys.meta_path.append(_Finder())
    sys.modules["sgl_kernel"] = _Kernels("sgl_kernel")


def fork_instead_of_spawn() -> None:
    """Let its three processes share what is imported by then, which takes most of the start."""
    import sglang.srt.managers.detokenizer_manager
    import sglang.srt.managers.scheduler  # noqa: F401

    set_start_method = multiprocessing.set_start_method

    def forked(method: str | None, force: bool = False) -> None:
        set_start_method("fork", force=force)

    multiprocessing.set_start_method = forked


def script_by_header() -> None:
    """Take a grammar from a header of any request. SGLang's own dialects take one on chat completions only."""
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    generate = TokenizerManager.generate_request

    def generate_request(self: Any, obj: Any, request: Any = None) -> Any:
        if request is not None and (regex := request.headers.get(SCRIPT_HEADER)):
            kept = {name: value for name, value in obj.sampling_params.items() if name not in GRAMMARS}
            obj.sampling_params = {**kept, "regex": unquote(regex), "temperature": 0}
        return generate(self, obj, request)

    TokenizerManager.generate_request = generate_request


def main() -> None:
    given = sys.argv[1:]
    named = {argument.partition("=")[0] for argument in given}
    for flag, value in DEFAULTS.items():
        if flag not in named:
            given += [flag] if value is None else [flag, value]
    install_stubs()
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    fork_instead_of_spawn()
    script_by_header()
    try:
        run_server(prepare_server_args(given))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main()
