"""Takes a file from a form to the disk as it comes; nothing of it is held."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.batches import asked
from gateway.batches.blobs import Blobs, Spool
from gateway.batches.front import PURPOSES
from gateway.batches.multipart import BadForm, FormSplitter, PartBegins, boundary_of
from gateway.batches.objects import File
from gateway.batches.store import Store
from gateway.core.transport import BodyTooLarge, Request

MAX_FIELD_BYTES = 4096
FORM_BYTES = 64 * 1024
"""Of a form beside its file."""
MAX_NAME_CHARS = 255


@dataclass(slots=True)
class Form:
    fields: dict[str, bytes]
    filename: str | None = None
    """None: there was no file."""


async def upload(request: Request, tenant: str, store: Store, blobs: Blobs, max_bytes: int, now: int) -> File:
    """The file, announced. Raises Refused."""
    async with blobs.new() as spool:
        try:
            form = await _read(request, spool, max_bytes)
        except BadForm as error:
            asked.refuse(str(error))
        except BodyTooLarge:
            text = f"The file is larger than {max_bytes:,} bytes (batches.file_bytes)."
            asked.refuse(text, "file", status=413, code="file_too_large")
        if form.filename is None:
            asked.missing("file")
        values = {name: value.decode(errors="replace") for name, value in form.fields.items()}
        purpose = values.get("purpose") or asked.missing("purpose")
        if purpose not in PURPOSES:
            text = f"'{purpose}' is not one of {list(PURPOSES)}."
            asked.refuse(text, "purpose", code="invalid_value")
        expires_s = _expires_s(values, purpose)
        await spool.keep()
        file = File(
            id=spool.file_id,
            tenant=tenant,
            purpose=purpose,
            filename=form.filename,
            size_bytes=spool.size_bytes,
            created_at=now,
            expires_at=None if expires_s is None else now + expires_s,
        )
        await store.add_file(file)
        return file


async def _read(request: Request, spool: Spool, max_bytes: int) -> Form:
    """Raises BadForm, BodyTooLarge."""
    splitter = FormSplitter(boundary_of(request.headers.get("content-type", "")))
    form, name, beside_bytes = Form({}), "", 0
    async for chunk in request.chunks(max_bytes + FORM_BYTES):
        for event in splitter.feed(chunk):
            if isinstance(event, PartBegins):
                name = event.name
                beside_bytes += event.head_bytes
                if name == "file":
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


def _expires_s(values: dict[str, str], purpose: str) -> int | None:
    policy = {
        key: values[f"expires_after[{key}]"] for key in ("anchor", "seconds") if f"expires_after[{key}]" in values
    }
    if policy:
        return asked.expires_s(policy, "expires_after")
    return asked.BATCH_FILE_EXPIRES_S if purpose == "batch" else None
