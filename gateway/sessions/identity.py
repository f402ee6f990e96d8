"""Identity: the session and the family of each request.

With msgspec (extra `fast`) the raw text of messages and tools is found in a body and fingerprinted, so that the
part of a prompt that came before is not read again. Without it every prompt is written and hashed in whole.
xxhash, of the same extra, is the faster fingerprint.
"""

from __future__ import annotations

import math
import os
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from types import GenericAlias
from typing import Any

import orjson

from gateway.core import fields
from gateway.core.fields import excerpt
from gateway.core.pieces import Raw, RawParts
from gateway.core.reply import MOST_CHARS, Reply
from gateway.core.slices import Steps
from gateway.dialects.base import Script
from gateway.dialects.canonical import ToolList, tools_in_steps
from gateway.exchange import Exchange, Recognition
from gateway.sessions import claims
from gateway.sessions.claims import Claim
from policies.recognition import chains
from policies.recognition.chains import Texts
from policies.recognition.continuation import Call, Rule
from policies.recognition.history import history
from policies.recognition.lineage import Lineage, Sighting
from policies.types import SIDE, Blocks, History, PromptHead, SessionId


class Cutter:
    """Cuts bodies into the raw text of their parts. `is_fast=False`: as if the extra was not installed."""

    def __init__(self, is_fast: bool = True) -> None:
        self.fingerprint = _fingerprint()
        self._decoder = _decoder() if is_fast else None

    @property
    def is_fast(self) -> bool:
        return self._decoder is not None

    def texts(self, raw: bytes) -> Any:
        """Return the texts of `tools` and of each of the `messages` of a body; None without msgspec, or where the
        body is something else."""
        if self._decoder is None:
            return None
        decode, error = self._decoder
        try:
            return decode(raw)
        except (error, RecursionError):  # nested deeper than it reads
            return None

    def parts(self, tools: Raw, messages: Sequence[Raw]) -> RawParts:
        """Return the fingerprints of texts."""
        return RawParts(self.fingerprint(tools) if tools else 0, list(map(self.fingerprint, messages)))

    def cut(self, raw: bytes) -> RawParts | None:
        """Return the fingerprints of a body with `messages`; None where it has no `texts`."""
        texts = self.texts(raw)
        return None if texts is None else self.parts(texts.tools, texts.messages)


def _decoder() -> tuple[Callable[[bytes], Any], type[Exception]] | None:
    try:
        msgspec: Any = import_module("msgspec")
    except ImportError:
        return None
    fields: list[Any] = [("messages", GenericAlias(list, msgspec.Raw), []), ("tools", msgspec.Raw, b"")]
    return msgspec.json.Decoder(msgspec.defstruct("Body", fields)).decode, msgspec.MsgspecError


@cache
def _fingerprint() -> Callable[[Any], int]:
    """Return a function to 64 bits that differs in each process, so that no client can search for a collision."""
    try:
        xxhash = import_module("xxhash")
    except ImportError:
        return lambda text: hash(bytes(text))
    return partial(xxhash.xxh3_64_intdigest, seed=secrets.randbits(64))


# ---- the session of a request

_MIN_ID_CHARS = 9
"""Shorter call ids ("call_1") are no identity; Mistral's random ones have nine characters."""
_MIN_TEXT_CHARS = 12
"""Shorter answers ("Done.") occur by chance."""
_MARK_CHARS = 48
LEAST_CUT_BYTES = 2048
"""A smaller body takes less time to read than to compare with known ones."""
MAX_TOOL_LISTS, MAX_TOOL_BYTES = 256, 16 * 2**20
MAX_KEYS = 10_000
_STEPS_USED_UP = b"MAXIMUM STEPS REACHED"
"""OpenCode's `steps`: the last allowed call ends in an assistant message that says so."""

_CONFIDENCE = {
    Rule.NEXT: 0.9,
    Rule.RETRY: 0.8,
    Rule.SIDE: 0.8,
    Rule.NEW: 0.8,
    Rule.EDITED: 0.7,
    Rule.FORK: 0.7,
    Rule.RESTART: 0.6,
    Rule.SIBLING: 0.6,
}
"""Confidence of the chain alone."""
_AGREEING = frozenset((Rule.NEXT, Rule.RETRY, Rule.EDITED))
_UNKNOWN = frozenset((Rule.NEW, Rule.SIBLING))
_NEW, _RETRY = Rule.NEW, Rule.RETRY
"""Globals, as is `SIDE`."""


class Identity:
    """Recognises sessions and families, tenant by tenant and model by model.

    `secret`: key of all hashes. Gateways that share it give the same ids to the same named sessions and to
    the same families; without one, ids are this process's own. Bounds: see `policies.recognition.lineage.Lineage`.
    """

    def __init__(
        self,
        lineage: Lineage | None = None,
        secret: bytes | None = None,
        cutter: Cutter | None = None,
        max_tool_bytes: int = MAX_TOOL_BYTES,
    ) -> None:
        self._lineage = lineage or Lineage()
        self.cutter = cutter or Cutter()
        self._tools = _ToolLists(max_tool_bytes)
        self._keys: dict[tuple[str, str], tuple[bytes, bytes]] = {}
        self._secret = (secret or os.urandom(32))[:64]
        self._open: dict[str, Sighting] = {}
        self.tools_first: set[str] = set()
        """Engine models whose template renders tools before the system text; for others the system comes first,
        which counts less as shared and so is safe."""

    @property
    def num_bytes(self) -> int:
        """About the memory of recognition, without tool lists."""
        return self._lineage.num_bytes

    @property
    def num_tool_bytes(self) -> int:
        return self._tools.num_bytes

    @property
    def num_sessions(self) -> int:
        return self._lineage.num_sessions

    @property
    def num_families(self) -> int:
        return self._lineage.num_families

    def script(self, exchange: Exchange) -> Script:
        """Return the conversation of a request. A beginning that came before, byte for byte, is not read again."""
        dialect = exchange.dialect
        is_cut = dialect.is_item_a_message and len(exchange.payload.raw) >= LEAST_CUT_BYTES
        raw = (exchange.raw_parts or self.cutter.cut(exchange.payload.raw)) if is_cut else None
        if raw is None:
            return dialect.script(exchange.payload.body)
        key = (exchange.caller.tenant, raw.tools)
        tools = self._tools.get(key)
        script = dialect.script(exchange.payload.body, tools)
        if tools is None:
            self._tools.put(key, ToolList(script.tools, script.tool_names))
        _set_fingerprints(exchange, script, raw)
        return script

    def script_in_steps(self, exchange: Exchange) -> Steps[Script]:
        """As `script`, of a large body. What recognition reads of it is written and hashed, too."""
        dialect, body, cut = exchange.dialect, exchange.payload.body, exchange.cut
        raw, tools, key = None, None, (exchange.caller.tenant, 0)
        if dialect.is_item_a_message:
            if cut is None:
                raw = self.cutter.cut(exchange.payload.raw)
            else:
                raw = self.cutter.parts(cut.members.get("tools"), cut.items("messages"))
            yield
        if raw is not None:
            key = (exchange.caller.tenant, raw.tools)
            tools = self._tools.get(key)
        if tools is None:
            tools = yield from tools_in_steps(dialect.definitions(body))
            if raw is not None and self._tools.get(key) is None:
                self._tools.put(key, tools)
        script = yield from dialect.script_in_steps(body, tools)
        if raw is not None:
            _set_fingerprints(exchange, script, raw)
        blocks = yield from self._lineage.prepare(self._call(exchange, script))
        return replace(script, blocks=blocks)

    def recognise(self, exchange: Exchange, script: Script, now: float) -> Recognition:
        """Return the session of a request. `answered` must follow for each recognised exchange, however it
        ends."""
        headers = exchange.request.headers
        claim = claims.read_claim(headers)
        group = fields.text(exchange.payload.body, "prompt_cache_key")
        call = self._call(exchange, script, claim, group)
        sighting = self._lineage.recognise(call, now)
        self._open[exchange.id] = sighting
        remaining = claims.whole_number(headers, "x-turngate-remaining-turns")
        if remaining is None and _is_out_of_steps(script):
            remaining = 0
        # By place: names take thrice the time to pass.
        return Recognition(
            sighting.session_id,
            sighting.family_id,
            sighting.parent_id,
            sighting.turn_index,
            sighting.kind,
            _source(sighting, claim, group),  # source
            _confidence(sighting),  # confidence
            sighting.rule is _RETRY,  # is_retry
            sighting.blocks,
            sighting.chars,
            remaining,  # remaining_turns
            claim.is_final,
            claims.agent_name(headers),  # agent
            None if claim.session is None else excerpt(claim.session),  # client_session
            call.name,  # client_hash
            _history(sighting, script),  # history
            _head(sighting, script),  # head
            sighting.system,  # system_hash
            sighting.system_change,
        )

    def residency(self, exchange: Exchange, script: Script) -> tuple[Blocks, int]:
        """Return the residency chain and the length of a prompt that an engine gets instead of the recognised
        one."""
        call = self._call(exchange, script)
        shared = (*call.tools, call.system) if call.tools_first else (call.system, *call.tools)
        return chains.block_chain(call.key, (*shared, *call.messages)), call.num_chars

    def answered(self, exchange: Exchange, is_complete: bool, now: float) -> None:
        """Record the end of an exchange; harmless if repeated. `is_complete`: its client got a whole answer."""
        sighting = self._open.pop(exchange.id, None)
        if sighting is not None:
            marks, said, calls = _left_behind(exchange.reply)
            self._lineage.answered(sighting, is_complete, marks, now, said, calls)

    def forget_session(self, _tenant: str, session_id: SessionId) -> None:
        self._lineage.forget_session(session_id)

    def _call(
        self, exchange: Exchange, script: Script, claim: Claim = claims.NO_CLAIM, group: str | None = None
    ) -> Call:
        model, messages = _model(exchange), script.messages
        if isinstance(messages, Texts) and not messages.fingerprints:
            messages = messages[:]  # all are looked at
        key, tenant = self._scope(exchange.caller.tenant, model)
        # By place: names take thrice the time to pass.
        return Call(
            key,
            script.tools,
            script.system,
            messages,
            tenant,
            self.cutter.fingerprint(script.system),  # system_hash
            self._name(exchange.caller.tenant, claim.session) if claim.session is not None else None,  # name
            self._name(exchange.caller.tenant, claim.parent) if claim.parent is not None else None,  # parent
            group.encode() if group else None,  # group
            claims.says_retry(exchange.request.headers),  # says_retry
            claim.expects_tools,
            model in self.tools_first,
            script.blocks,
        )

    def _scope(self, tenant: str, model: str) -> tuple[bytes, bytes]:
        """Return the keys of all hashes of a tenant's prompts: to a model, and to any."""
        scope = tenant, model
        found = self._keys.get(scope)
        if found is None:
            if len(self._keys) >= MAX_KEYS:
                self._keys.clear()
            found = self._keys[scope] = self._key(tenant, model), self._key(tenant)
        return found

    def _key(self, *scope: str) -> bytes:
        return chains.digest(self._secret, *map(str.encode, scope)).to_bytes(8, "big") + self._secret[:32]

    def _name(self, tenant: str, id_: str) -> str:
        """Return the id as the rest of the gateway sees it. It does not depend on the model, so that the request
        of a title from a small model stays with its session. The chains do depend on it, so agents on two models
        under one id are two sessions."""
        return chains.name(self._secret, tenant.encode(), id_.encode())


def _set_fingerprints(exchange: Exchange, script: Script, raw: RawParts) -> None:
    messages, items = script.messages, raw.items[script.num_system :]
    if isinstance(messages, Texts) and len(items) == len(messages):
        last = hash((exchange.caller.tenant, exchange.dialect.name))
        messages.fingerprints = [last := hash((last, item)) for item in items]


def lineage_of(max_sessions: int, max_bytes: float = math.inf) -> Lineage:
    """Return the memory of a table of so many sessions. The table decides when one is forgotten. The bound here is
    for sessions of several conversations, as those are whose client gives one id to many side requests."""
    return Lineage(max_sessions, math.inf, max_conversations=2 * max_sessions, max_bytes=max_bytes)


class _ToolLists:
    """The latest tool lists, by tenant and fingerprint; bounded in number and bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[tuple[str, int], ToolList] = OrderedDict()
        self.num_bytes = 0

    def get(self, key: tuple[str, int]) -> ToolList | None:
        return self._kept.get(key)

    def put(self, key: tuple[str, int], tools: ToolList) -> None:
        self._kept[key] = tools
        self.num_bytes += tools.size_bytes
        while len(self._kept) > MAX_TOOL_LISTS or self.num_bytes > self._max_bytes:
            self.num_bytes -= self._kept.popitem(last=False)[1].size_bytes


def _model(exchange: Exchange) -> str:
    return exchange.payload.engine_model or exchange.payload.requested_model


def _source(sighting: Sighting, claim: Claim, group: str | None) -> str:
    if claim.session is not None:
        return claim.source
    if sighting.rule not in _UNKNOWN:
        return "chain"
    return "prompt_cache_key" if group else "new"


def _confidence(sighting: Sighting) -> float:
    alone = _CONFIDENCE[sighting.rule]
    if not sighting.is_named:
        return alone
    return 1.0 if sighting.rule in _AGREEING else min(0.9, alone + 0.1)


def _left_behind(reply: Reply) -> tuple[tuple[bytes, ...], bytes, list[bytes]]:
    """Return the marks of this answer that the client will send back, the answer as JSON text, and the arguments
    of its calls.

    Every client sends call ids back verbatim. Text is known by its end, since clients take reasoning off its
    start. A text of a few words counts as none: then the calls are the answer. An answer longer than MOST_CHARS
    leaves nothing.
    """
    if reply.num_chars > MOST_CHARS:
        return (), b"", []
    text, calls = reply.text.strip(), reply.tool_calls
    says_much = len(text) >= _MIN_TEXT_CHARS
    arguments = [call.arguments for call in calls]
    said = orjson.dumps(text if says_much else "\n".join(arguments))[1:-1]
    if calls:
        ids = tuple([orjson.dumps(call.id)[1:-1] for call in calls if len(call.id) >= _MIN_ID_CHARS])
        return ids, said, list(map(_as_written, arguments))
    return (orjson.dumps(text[-_MARK_CHARS:])[1:-1],) if says_much else (), said, []


def _as_written(arguments: str) -> bytes:
    """Return the arguments of a call with their letters as canonical messages have them."""
    if "\\u" in arguments:
        try:
            return orjson.dumps(orjson.loads(arguments))
        except (orjson.JSONDecodeError, orjson.JSONEncodeError):
            pass
    return arguments.encode(errors="replace")


def _history(sighting: Sighting, script: Script) -> History | None:
    """Return the earlier turns of a session that nothing here has shown before. A fork and a sibling are new."""
    if sighting.rule is not _NEW or sighting.kind is SIDE:
        return None
    return history(len(script.system) + sum(map(len, script.tools)), script.messages)


def _head(sighting: Sighting, script: Script) -> PromptHead | None:
    """Return the head of the first prompt of a session."""
    if sighting.turn_index or sighting.kind is SIDE or not (script.system or script.tools):
        return None
    return PromptHead(len(script.system) + sum(map(len, script.tools)), hash((script.system, script.tools)))


def _is_out_of_steps(script: Script) -> bool:
    last = script.messages[-1] if script.messages else b""
    return last.startswith(b'["assistant"') and _STEPS_USED_UP in last
