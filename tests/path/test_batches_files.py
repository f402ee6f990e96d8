"""`/v1/files` over real sockets."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from tests.path.conftest import Gateway, Start
from tests.path.fake_engine import FakeEngine

Connect = Callable[..., openai.AsyncOpenAI]


@pytest.fixture
async def gateway(start: Start, engine: FakeEngine, tmp_path: Path) -> Gateway:
    return await start(engine, batches={"directory": str(tmp_path), "file_bytes": 3_000_000})


async def test_a_file_comes_back_as_it_was_sent(gateway: Gateway, tmp_path: Path, sdk: Connect) -> None:
    client, data = sdk(gateway), bytes(range(256)) * 10_000
    file = await client.files.create(file=("dir/ü.bin", io.BytesIO(data)), purpose="user_data")
    assert (file.bytes, file.filename, file.purpose, file.expires_at) == (len(data), "ü.bin", "user_data", None)
    assert await client.files.retrieve(file.id) == file
    assert (await client.files.content(file.id)).content == data
    deleted = await client.files.delete(file.id)
    assert (deleted.id, deleted.deleted) == (file.id, True)
    assert list((tmp_path / "files").iterdir()) == []
    with pytest.raises(openai.NotFoundError, match=f"No such File object: {file.id}"):
        await client.files.retrieve(file.id)


async def test_files_expire_when_asked_or_by_their_purpose(gateway: Gateway, sdk: Connect) -> None:
    client = sdk(gateway)
    policy: Any = {"anchor": "created_at", "seconds": 7200}
    asked = await client.files.create(file=("a", b"x"), purpose="evals", expires_after=policy)
    batch = await client.files.create(file=("a", b"x"), purpose="batch")
    assert asked.expires_at == asked.created_at + 7200
    assert batch.expires_at == batch.created_at + 30 * 86_400


async def test_files_are_listed_by_purpose_in_either_order(gateway: Gateway, sdk: Connect) -> None:
    client = sdk(gateway)
    purposes: list[Any] = ["evals", "batch", "evals", "evals"]
    ids = [(await client.files.create(file=("a", b"x"), purpose=purpose)).id for purpose in purposes]
    found = [file.id async for file in await client.files.list(purpose="evals", limit=2, order="asc")]
    assert found == [ids[0], ids[2], ids[3]]
    assert [file.id async for file in await client.files.list()] == ids[::-1]


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"file": b"x"}, 400, "purpose"),
        ({"purpose": b"batch"}, 400, "file"),
        ({"purpose": b"fun", "file": b"x"}, 400, "purpose"),
        ({"purpose": b"batch", "file": b"x", "expires_after[seconds]": b"9"}, 400, "expires_after.anchor"),
        ({"purpose": b"batch", "file": b"x" * 3_000_001}, 413, "file"),
        ({"purpose": b"batch", "file": b"x" * 9_000_000}, 413, "file"),
    ],
)
async def test_a_wrong_upload_is_refused_and_leaves_nothing(
    gateway: Gateway, tmp_path: Path, fields: dict[str, bytes], status: int, param: str
) -> None:
    form = aiohttp.FormData()
    for name, value in fields.items():
        form.add_field(name, io.BytesIO(value), filename="in.jsonl" if name == "file" else "field")
    async with gateway.client.post(gateway.url("/v1/files"), data=form) as response:
        assert response.status == status
        assert (await response.json())["error"]["param"] == param
    assert list((tmp_path / "files").iterdir()) == []


async def test_a_form_with_two_files_is_refused(gateway: Gateway, tmp_path: Path) -> None:
    parts = [(f"a{n}.jsonl", b"{}") for n in range(2)]
    form = aiohttp.FormData({"purpose": "batch"})
    for name, content in parts:
        form.add_field("file", content, filename=name)
    async with gateway.client.post(gateway.url("/v1/files"), data=form) as response:
        assert (response.status, "more than one file" in await response.text()) == (400, True)
    assert list((tmp_path / "files").iterdir()) == []


async def test_what_stands_beside_the_file_in_a_form_is_bounded(gateway: Gateway, tmp_path: Path) -> None:
    form = aiohttp.FormData({f"field {n}": "x" * 4_000 for n in range(100)}, default_to_multipart=True)
    async with gateway.client.post(gateway.url("/v1/files"), data=form) as response:
        assert response.status == 400
        assert "beside the file" in (await response.json())["error"]["message"]
    assert list((tmp_path / "files").iterdir()) == []


async def test_the_headers_of_parts_count_as_beside_the_file(gateway: Gateway) -> None:
    about = f'Content-Disposition: form-data; name="a"; x="{"y" * 15_000}"'
    form = "".join(f"--b\r\n{about}\r\n\r\n\r\n" for _ in range(10)) + "--b--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    async with gateway.client.post(gateway.url("/v1/files"), data=form, headers=headers) as response:
        assert response.status == 400
        assert "beside the file" in (await response.json())["error"]["message"]


async def test_a_file_whose_content_is_gone_is_not_begun_to_be_sent(
    gateway: Gateway, tmp_path: Path, sdk: Connect
) -> None:
    client = sdk(gateway)
    file = await client.files.create(file=("a", b"x"), purpose="evals")
    (tmp_path / "files" / file.id).unlink()
    with pytest.raises(openai.NotFoundError, match=file.id):
        await client.files.content(file.id)


async def test_an_upload_that_its_client_gives_up_leaves_nothing(gateway: Gateway, tmp_path: Path) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.app.port)
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nhello'
    about = b"Host: x\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: 900000\r\n\r\n"
    writer.write(b"POST /v1/files HTTP/1.1\r\n" + about + head)
    await gateway.until(lambda: any((tmp_path / "files").iterdir()))
    writer.transport.abort()
    await gateway.until(lambda: not any((tmp_path / "files").iterdir()))
    assert await reader.read() == b""


async def test_a_body_that_is_no_form_is_refused(gateway: Gateway) -> None:
    async with gateway.client.post(gateway.url("/v1/files"), data=b"{}") as response:
        assert response.status == 400
        assert "multipart/form-data" in (await response.json())["error"]["message"]


@pytest.mark.parametrize(
    "wrong", ["order=", "order=up", "limit=", "limit=0", "limit=10001", "limit=" + "9" * 5000]
)
async def test_a_page_that_there_cannot_be_is_refused_with_the_name_of_its_parameter(
    gateway: Gateway, wrong: str
) -> None:
    async with gateway.get(f"/v1/files?{wrong}") as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == wrong.partition("=")[0]


async def test_a_page_after_nothing_is_the_first(gateway: Gateway, sdk: Connect) -> None:
    file = await sdk(gateway).files.create(file=("a", b"x"), purpose="evals")
    async with gateway.get("/v1/files?after=&purpose=") as response:
        assert [row["id"] for row in (await response.json())["data"]] == [file.id]
