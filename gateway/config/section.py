"""What sections of the configuration are made of: the frozen base class, and numbers with bounds."""

from __future__ import annotations

import ast
import re
from inspect import cleandoc, getsource
from ipaddress import ip_address
from itertools import pairwise
from textwrap import dedent
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

SecretRef = Annotated[str, Field(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$")]
Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(gt=0)]
SecondsOrZero = Annotated[float, Field(ge=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
Factor = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


def form(pattern: str, example: str) -> AfterValidator:
    """Text of one form. What was written instead is not repeated: it may hold a password."""
    fits = re.compile(pattern).match

    def checked(text: str) -> str:
        if not fits(text):
            raise ValueError(f"write {example}")
        return text

    return AfterValidator(checked)


class Section(BaseModel):
    """Frozen; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def help_of(section: type[Section]) -> dict[str, str]:
    """What stands under each of its keys. Read from the source when it is shown: `use_attribute_docstrings` would
    read it at every start, of which that was a tenth."""
    (defined,) = ast.parse(dedent(getsource(section))).body
    assert isinstance(defined, ast.ClassDef)
    helps = {}
    for statements in pairwise(defined.body):
        match statements:
            case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                helps[key] = cleandoc(text)
    return helps


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine only."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
