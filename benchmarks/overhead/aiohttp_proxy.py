"""The least that a proxy on aiohttp does: parse the body, ask, relay.

python -m benchmarks.overhead.aiohttp_proxy PORT UPSTREAM_URL
"""

from __future__ import annotations

import argparse
import asyncio
from importlib import import_module

import aiohttp
import orjson
from aiohttp import web


async def serve(port: int, upstream: str) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

        async def relay(request: web.BaseRequest) -> web.StreamResponse:
            if request.method == "GET":
                return web.Response(text="{}")
            body = await request.read()
            orjson.loads(body)
            headers = {"Content-Type": "application/json"}
            async with session.post(upstream + request.path, data=body, headers=headers) as answer:
                out = web.StreamResponse(status=answer.status)
                out.content_type = answer.content_type
                if answer.content_length is not None:
                    out.content_length = answer.content_length
                await out.prepare(request)
                async for chunk in answer.content.iter_any():
                    await out.write(chunk)
                await out.write_eof()
                return out

        runner = web.ServerRunner(web.Server(relay, access_log=None))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("port", type=int, metavar="PORT")
    parser.add_argument("upstream", metavar="UPSTREAM_URL")
    options = parser.parse_args()
    try:
        new_loop = import_module("uvloop").new_event_loop
    except ImportError:
        new_loop = None
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve(options.port, options.upstream))


if __name__ == "__main__":
    main()
