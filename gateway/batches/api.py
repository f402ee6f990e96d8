"""`/v1/files` and `/v1/batches`, as in OpenAI's API: each object is seen by its own tenant only."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import orjson

from gateway.access.keys import Caller, Keys
from gateway.batches import asked
from gateway.batches.objects import Batch, File, NotAllowed, Status, new_id
from gateway.batches.store import ListPage, Store
from gateway.batches.upload import Blobs, upload
from gateway.core.errors import Refused
from gateway.core.fields import Json
from gateway.core.transport import BodyTooLarge, Request, Responder
from gateway.dialects import BY_PATH

MAX_BODY_BYTES = 64 * 1024
_OPENAI = BY_PATH["/v1/chat/completions"]


@dataclass(frozen=True, slots=True)
class Api:
    """Answers from the store. Work is the runner's."""

    keys: Keys
    store: Store
    blobs: Blobs
    begin: Callable[[Batch], Awaitable[None]]
    """Told of a batch that is new, or that is to be cancelled."""
    endpoints: tuple[str, ...]
    max_file_bytes: int
    now: Callable[[], float]

    async def handle(self, request: Request, responder: Responder) -> None:
        """A `transport.Handler`."""
        try:
            await self._handle(request, responder)
        except Refused as refused:
            failure = refused.failure
            await _reply(responder, failure.status, _OPENAI.error_body(failure))

    async def _handle(self, request: Request, responder: Responder) -> None:
        caller = await self.keys.known(request.headers)
        tenant = caller.tenant
        match request.method, request.path.split("/")[2:]:
            case "POST", ["files"]:
                now = int(self.now())
                file = await upload(request, tenant, self.store, self.blobs, self.max_file_bytes, now)
                answer = file.as_json()
            case "GET", ["files"]:
                answer = await self._files(tenant, request.query)
            case "GET", ["files", file_id]:
                answer = (await self._file(tenant, file_id)).as_json()
            case "DELETE", ["files", file_id]:
                answer = await self._delete(tenant, file_id)
            case "GET", ["files", file_id, "content"]:
                await self._content(await self._file(tenant, file_id), responder)
                return
            case "POST", ["batches"]:
                answer = await self._create(caller, request)
            case "GET", ["batches"]:
                answer = await self._batches(tenant, request.query)
            case "GET", ["batches", batch_id]:
                answer = (await self._batch(tenant, batch_id)).as_json()
            case "POST", ["batches", batch_id, "cancel"]:
                answer = await self._cancel(tenant, batch_id)
            case method, _:
                asked.refuse(f"There is no {method} {request.path} here.", status=404)
        await _reply(responder, 200, orjson.dumps(answer))

    # ---- files

    async def _files(self, tenant: str, query_text: str) -> Json:
        query = asked.query_of(query_text)
        page = asked.page(query, default=10_000, most=10_000)
        found = await self.store.files(tenant, query.get("purpose") or None, page)
        return _listed([file.as_json() for file in found], page)

    async def _file(self, tenant: str, file_id: str) -> File:
        file = await self.store.file(tenant, file_id)
        if file is None or (file.expires_at is not None and file.expires_at <= self.now()):
            asked.refuse(f"No such File object: {file_id}", "id", status=404)
        return file

    async def _delete(self, tenant: str, file_id: str) -> Json:
        await self._file(tenant, file_id)
        await self.store.remove_file(tenant, file_id)
        await self.blobs.keep_only(self.store.content_in_use)
        return {"id": file_id, "object": "file", "deleted": True}

    async def _content(self, file: File, responder: Responder) -> None:
        if not await asyncio.to_thread(self.blobs.path(file.id).exists):
            asked.refuse(f"The content of {file.id} is not in this gateway's directory.", "id", status=404)
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
            wanted = asked.batch(await request.read(MAX_BODY_BYTES), self.endpoints)
        except BodyTooLarge:
            asked.refuse(f"The body is longer than {MAX_BODY_BYTES} bytes.", status=413)
        file = await self._file(caller.tenant, wanted.input_file_id)
        if file.purpose != "batch":
            text = f"The file {file.id} has the purpose '{file.purpose}'; batches are made from files for 'batch'."
            asked.refuse(text, "input_file_id")
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
        await self.begin(batch)
        return batch.as_json()

    async def _batches(self, tenant: str, query_text: str) -> Json:
        page = asked.page(asked.query_of(query_text), default=20, most=100)
        found = await self.store.batches(tenant, page)
        return _listed([batch.as_json() for batch in found], page)

    async def _batch(self, tenant: str, batch_id: str) -> Batch:
        batch = await self.store.batch(tenant, batch_id)
        if batch is None:
            asked.refuse(f"No batch found with id '{batch_id}'.", "batch_id", status=404)
        return batch

    async def _cancel(self, tenant: str, batch_id: str) -> Json:
        """One that is being cancelled, or is, stays as it is."""
        batch = await self._batch(tenant, batch_id)
        if batch.status not in (Status.CANCELLING, Status.CANCELLED):
            try:
                batch = await self.store.move(batch_id, Status.CANCELLING, int(self.now()))
            except NotAllowed:
                batch = await self._batch(tenant, batch_id)
                asked.refuse(f"Cannot cancel a batch with status '{batch.status}'.", status=409)
            await self.begin(batch)
        return batch.as_json()


def _listed(rows: Sequence[Json], page: ListPage) -> Json:
    """`rows` may hold one more than the page."""
    shown = rows[: page.limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(rows) > page.limit,
    }


async def _reply(responder: Responder, status: int, body: bytes) -> None:
    await responder.reply(status, [("Content-Type", "application/json")], body)
