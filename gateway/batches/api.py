"""`/v1/files` and `/v1/batches`, as in OpenAI's API: a tenant sees its own objects only."""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import parse_qs

import orjson

from gateway.access.keys import Caller, Keys
from gateway.batches import ENDPOINTS, PURPOSES, BatchOperation
from gateway.batches.files import (
    NO_ROOM,
    BadForm,
    Blobs,
    FormSplitter,
    PartBegins,
    Spool,
    boundary_of,
    is_disk_full,
)
from gateway.batches.objects import FULL_CODE, NEXT, Batch, File, LineFault, NotAllowed, Status, new_id
from gateway.batches.store import ListPage, Store
from gateway.core import fields
from gateway.core.errors import Failure, Outcome, Refused
from gateway.core.fields import Json
from gateway.core.transport import BodyTooLarge, Request, Responder
from gateway.dialects import OPENAI

LOG = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Api:
    """Answers from the store. Work on batches belongs to the runner."""

    keys: Keys
    store: Store
    blobs: Blobs
    work_on: Callable[[Batch], Awaitable[None]]
    """Takes a batch that is new or is to be cancelled."""
    max_file_bytes: int
    now: Callable[[], float]
    problem: Callable[[str], LineFault | None]
    """Returns why the work on a batch waits; None: it does not, or another gateway has it."""

    async def handle(
        self, operation: BatchOperation, ids: Sequence[str], request: Request, responder: Responder
    ) -> None:
        """A BatchHandler."""
        try:
            caller = await self.keys.known(request.headers)
            if operation is BatchOperation.READ_FILE:
                await self._content(await self._file(caller.tenant, ids[0]), responder)
                return
            status, body = 200, orjson.dumps(await self._answer(operation, ids, caller, request))
        except Refused as refused:
            status, body = refused.failure.status, OPENAI.error_body(refused.failure)
        except (OSError, sqlite3.Error) as error:
            if not is_disk_full(error):
                raise
            LOG.warning("a request for files or batches is refused: %s", NO_ROOM)
            failure = Failure(507, "server_error", NO_ROOM, code=FULL_CODE)
            status, body = 507, OPENAI.error_body(failure)
        await responder.reply(status, [("Content-Type", "application/json")], body)

    async def _answer(
        self, operation: BatchOperation, ids: Sequence[str], caller: Caller, request: Request
    ) -> Json:
        tenant = caller.tenant
        match operation:
            case BatchOperation.LIST_FILES:
                return await self._files(tenant, request.query)
            case BatchOperation.UPLOAD_FILE:
                return (await self._upload(request, tenant)).as_json()
            case BatchOperation.SHOW_FILE:
                return (await self._file(tenant, ids[0])).as_json()
            case BatchOperation.DELETE_FILE:
                return await self._delete(tenant, ids[0])
            case BatchOperation.LIST_BATCHES:
                return await self._batches(tenant, request.query)
            case BatchOperation.CREATE_BATCH:
                return await self._create(caller, request)
            case BatchOperation.SHOW_BATCH:
                return self._shown(await self._batch(tenant, ids[0]))
            case BatchOperation.CANCEL_BATCH:
                return await self._cancel(tenant, ids[0])
        raise AssertionError(operation)

    # ---- files

    async def _upload(self, request: Request, tenant: str) -> File:
        """Write a file to disk as it arrives, and announce it."""
        now, max_bytes = int(self.now()), self.max_file_bytes
        async with self.blobs.new() as spool:
            try:
                form = await _read_form(request, spool, max_bytes)
            except BadForm as error:
                refuse(str(error))
            except BodyTooLarge:
                text = f"The file is larger than {max_bytes:,} bytes (batches.file_bytes)."
                refuse(text, "file", status=413, code="file_too_large")
            if form.filename is None:
                refuse_missing("file")
            values = {name: value.decode(errors="replace") for name, value in form.fields.items()}
            purpose = values.get("purpose") or refuse_missing("purpose")
            if purpose not in PURPOSES:
                text = f"'{purpose}' is not one of {list(PURPOSES)}."
                refuse(text, "purpose", code="invalid_value")
            lifetime_s = _file_lifetime_s(values, purpose)
            await spool.keep()
            file = File(
                id=spool.file_id,
                tenant=tenant,
                purpose=purpose,
                filename=form.filename,
                size_bytes=spool.size_bytes,
                created_at=now,
                expires_at=None if lifetime_s is None else now + lifetime_s,
            )
            await self.store.add_file(file)
            return file

    async def _files(self, tenant: str, query_text: str) -> Json:
        query = query_of(query_text)
        page = page_of(query, default=10_000, most=10_000)
        found = await self.store.files(tenant, query.get("purpose") or None, page)
        return _listed([file.as_json() for file in found], page)

    async def _file(self, tenant: str, file_id: str) -> File:
        file = await self.store.file(tenant, file_id)
        if file is None or (file.expires_at is not None and file.expires_at <= self.now()):
            refuse(f"No such File object: {file_id}", "id", status=404)
        return file

    async def _delete(self, tenant: str, file_id: str) -> Json:
        await self._file(tenant, file_id)
        await self.store.remove_file(tenant, file_id)
        await self.blobs.keep_only(self.store.content_in_use)
        return {"id": file_id, "object": "file", "deleted": True}

    async def _content(self, file: File, responder: Responder) -> None:
        if not await asyncio.to_thread(self.blobs.path(file.id).exists):
            refuse(f"The content of {file.id} is not in this gateway's directory.", "id", status=404)
        headers = [
            ("Content-Type", "application/octet-stream"),
            ("Content-Length", str(file.size_bytes)),
            ("Content-Disposition", f'attachment; filename="{file.id}"'),
        ]
        await responder.open_stream(200, headers)
        async for chunk in self.blobs.chunks(file.id):
            await responder.write(chunk)
        await responder.end()

    # ---- batches

    async def _create(self, caller: Caller, request: Request) -> Json:
        try:
            wanted = BatchRequest.of(await request.read(MAX_BODY_BYTES))
        except BodyTooLarge:
            refuse(f"The body is longer than {MAX_BODY_BYTES} bytes.", status=413)
        file = await self._file(caller.tenant, wanted.input_file_id)
        if file.purpose != "batch":
            text = f"The file {file.id} has the purpose '{file.purpose}'; batches are made from files for 'batch'."
            refuse(text, "input_file_id")
        now = int(self.now())
        batch = Batch(
            id=new_id("batch_"),
            tenant=caller.tenant,
            key_id=caller.id,
            allowed_tools=caller.tools,
            endpoint=wanted.endpoint,
            input_file_id=file.id,
            completion_window=wanted.completion_window,
            created_at=now,
            expires_at=now + wanted.window_s,
            metadata=wanted.metadata,
            output_expires_s=wanted.output_expires_s,
        )
        await self.store.add_batch(batch)
        await self.work_on(batch)
        return batch.as_json()

    async def _batches(self, tenant: str, query_text: str) -> Json:
        page = page_of(query_of(query_text), default=20, most=100)
        found = await self.store.batches(tenant, page)
        return _listed(list(map(self._shown, found)), page)

    def _shown(self, batch: Batch) -> Json:
        """Return a batch, with the reason why the work on it waits if it has not ended."""
        row = batch.as_json()
        fault = self.problem(batch.id) if NEXT[batch.status] else None
        if fault is not None and row["errors"] is None:
            row["errors"] = {"object": "list", "data": [fault.as_json()]}
        return row

    async def _batch(self, tenant: str, batch_id: str) -> Batch:
        batch = await self.store.batch(tenant, batch_id)
        if batch is None:
            refuse(f"No batch found with id '{batch_id}'.", "batch_id", status=404)
        return batch

    async def _cancel(self, tenant: str, batch_id: str) -> Json:
        """Cancel a batch. One that is being cancelled, or is cancelled, stays as it is."""
        batch = await self._batch(tenant, batch_id)
        if batch.status not in (Status.CANCELLING, Status.CANCELLED):
            try:
                batch = await self.store.move(batch_id, Status.CANCELLING, int(self.now()))
            except NotAllowed:
                batch = await self._batch(tenant, batch_id)
                refuse(f"Cannot cancel a batch with status '{batch.status}'.", status=409)
            await self.work_on(batch)
        return batch.as_json()


def _listed(rows: Sequence[Json], page: ListPage) -> Json:
    """Make a list object. `rows` may hold one row more than the page."""
    shown = rows[: page.limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(rows) > page.limit,
    }


# ---- the form of an upload: its file goes to disk as it arrives

MAX_FIELD_BYTES = 4096
FORM_BYTES = 64 * 1024
"""Bytes of a form beside its file."""
MAX_NAME_CHARS = 255


@dataclass(slots=True)
class Form:
    fields: dict[str, bytes]
    filename: str | None = None
    """None: the form has no file."""


async def _read_form(request: Request, spool: Spool, max_bytes: int) -> Form:
    """Raises BadForm, BodyTooLarge."""
    splitter = FormSplitter(boundary_of(request.headers.get("content-type", "")))
    form, name, beside_bytes = Form({}), "", 0
    async for chunk in request.chunks(max_bytes + FORM_BYTES):
        for event in splitter.feed(chunk):
            if isinstance(event, PartBegins):
                name = event.name
                beside_bytes += event.head_bytes
                if name == "file":
                    if form.filename is not None:
                        raise BadForm("The form has more than one file.")
                    form.filename = _base_name(event.filename)
                else:
                    form.fields[name] = b""
            elif name == "file":
                await spool.write(event.data)
                if spool.size_bytes > max_bytes:
                    raise BodyTooLarge
            else:
                form.fields[name] += event.data
                beside_bytes += len(event.data)
                if len(form.fields[name]) > MAX_FIELD_BYTES:
                    raise BadForm(f"The field '{name}' is too long.")
            if beside_bytes > FORM_BYTES:
                raise BadForm(f"What stands beside the file in the form is longer than {FORM_BYTES:,} bytes.")
    if not splitter.has_ended:
        raise BadForm("The form ends before its last boundary.")
    return form


def _base_name(filename: str | None) -> str:
    return (filename or "upload").replace("\\", "/").rpartition("/")[2][-MAX_NAME_CHARS:]


def _file_lifetime_s(values: Mapping[str, str], purpose: str) -> int | None:
    """Read the lifetime of a new file. None: it does not expire."""
    names = {key: f"expires_after[{key}]" for key in ("anchor", "seconds")}
    policy = {key: values[name] for key, name in names.items() if name in values}
    if policy:
        return lifetime_s(policy, "expires_after")
    return BATCH_FILE_EXPIRES_S if purpose == "batch" else None


# ---- reads requests, or refuses them

BATCH_FILE_EXPIRES_S = 30 * 86_400
SHORTEST_EXPIRY_S, LONGEST_EXPIRY_S = 3_600, 30 * 86_400
LONGEST_WINDOW_S = 30 * 86_400
MAX_PAIRS, MAX_KEY_CHARS, MAX_VALUE_CHARS = 16, 64, 512
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_WINDOW = re.compile(r"([1-9][0-9]{0,6})([smhd])")


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A request for a new batch."""

    input_file_id: str
    endpoint: str
    completion_window: str
    window_s: int
    metadata: Mapping[str, str] | None
    output_expires_s: int | None

    @staticmethod
    def of(raw: bytes) -> BatchRequest:
        """Read a body. Raises Refused."""
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError:
            body = None
        if not isinstance(body, dict):
            refuse("The body must be a JSON object.")
        for key in ("input_file_id", "endpoint", "completion_window"):
            if body.get(key) is None:
                refuse_missing(key)
            if not isinstance(body[key], str):
                refuse(f"'{key}' must be a string.", key)
        endpoint = body["endpoint"]
        if endpoint not in ENDPOINTS:
            known = ", ".join(f"'{name}'" for name in ENDPOINTS)
            text = f"Invalid value: '{endpoint}'. Supported values are: {known}."
            refuse(text, "endpoint", code="invalid_value")
        policy = body.get("output_expires_after")
        return BatchRequest(
            body["input_file_id"],
            endpoint,
            body["completion_window"],
            _window_s(body["completion_window"]),
            _metadata(body),
            None if policy is None else lifetime_s(policy, "output_expires_after"),
        )


def refuse(message: str, param: str | None = None, status: int = 400, code: str | None = None) -> NoReturn:
    """Raises Refused."""
    outcome = Outcome.NOT_FOUND if status == 404 else Outcome.BAD_REQUEST
    raise Refused(outcome, Failure(status, "invalid_request_error", message, param, code))


def refuse_missing(param: str) -> NoReturn:
    """Raises Refused."""
    refuse(f"Missing required parameter: '{param}'.", param, code="missing_required_parameter")


def lifetime_s(policy: Any, param: str) -> int:
    """Read `{"anchor": "created_at", "seconds": ...}`. Raises Refused."""
    policy = policy if isinstance(policy, dict) else {}
    if policy.get("anchor") != "created_at":
        refuse("The only anchor is 'created_at'.", f"{param}.anchor", code="invalid_value")
    seconds = policy.get("seconds")
    if isinstance(seconds, str) and seconds.isdecimal():  # form fields are text
        seconds = int(seconds)
    if not isinstance(seconds, int) or not SHORTEST_EXPIRY_S <= seconds <= LONGEST_EXPIRY_S:
        text = f"'seconds' must be between {SHORTEST_EXPIRY_S} (1 hour) and {LONGEST_EXPIRY_S} (30 days)."
        refuse(text, f"{param}.seconds", code="invalid_value")
    return seconds


def page_of(query: Mapping[str, str], default: int, most: int) -> ListPage:
    """Raises Refused."""
    limit, order = query.get("limit", str(default)), query.get("order", "desc")
    if not limit.isdecimal() or len(limit) > 9 or not 1 <= int(limit) <= most:
        refuse(f"'limit' must be between 1 and {most}.", "limit", code="invalid_value")
    if order not in ("asc", "desc"):
        refuse("'order' must be 'asc' or 'desc'.", "order", code="invalid_value")
    return ListPage(int(limit), query.get("after") or None, order == "asc")


def query_of(text: str) -> dict[str, str]:
    """Return the last value of each parameter."""
    return {name: values[-1] for name, values in parse_qs(text, keep_blank_values=True).items()}


def _window_s(window: str) -> int:
    """Read `24h`, as in OpenAI's API. Other windows in seconds, minutes, hours or days are an extension."""
    match = _WINDOW.fullmatch(window)
    seconds = int(match[1]) * _UNITS_S[match[2]] if match else 0
    if not 0 < seconds <= LONGEST_WINDOW_S:
        text = f"Invalid value: '{window}'. Give a window such as '24h', '90m' or '7d', at most '30d'."
        refuse(text, "completion_window", code="invalid_value")
    return seconds


def _metadata(body: Json) -> dict[str, str] | None:
    if body.get("metadata") is None:
        return None
    pairs = fields.obj(body, "metadata")
    if not pairs and body["metadata"] != {}:
        refuse("'metadata' must be an object of strings.", "metadata")
    if len(pairs) > MAX_PAIRS:
        refuse(f"'metadata' may have at most {MAX_PAIRS} pairs.", "metadata")
    for key, value in pairs.items():
        if not isinstance(value, str):
            refuse(f"'metadata.{key}' must be a string.", f"metadata.{key}")
        if len(key) > MAX_KEY_CHARS or len(value) > MAX_VALUE_CHARS:
            text = f"A key of 'metadata' has at most {MAX_KEY_CHARS} characters, a value {MAX_VALUE_CHARS}."
            refuse(text, f"metadata.{key}")
    return pairs
