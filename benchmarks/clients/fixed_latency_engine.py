"""An engine of fixed speed for benchmarks of clients: 60 ms per answer, whatever the load.

    python -m benchmarks.clients.fixed_latency_engine PORT

Written on bare asyncio, so that it takes as little of the machine as it can. It answers chat completions, streamed
(one event) or not, first with a tool call, then with an output; and what a gateway asks a vLLM for. The task names
the file to read: `notes-7.txt`.
"""

from __future__ import annotations

import argparse
import asyncio
import re

FORWARD_S = 0.06
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_FILE = re.compile(rb"notes-\d+\.txt")
_USAGE = b'"usage":{"prompt_tokens":1700,"completion_tokens":20,"total_tokens":1720}'
_OUTPUT = b'{"role":"assistant","content":"{\\"file\\": \\"%s\\", \\"summary\\": \\"as read\\"}"}'
_CALL = (
    b'{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"call_%d","type":"function",'
    b'"function":{"name":"read_notes","arguments":"{\\"path\\": \\"%s\\"}"}}]}'
)

_PAGES = {
    b"/v1/models": b'{"object":"list","data":[{"id":"bench","object":"model","max_model_len":131072}]}',
    b"/version": b'{"version":"0.32.0"}',
    b"/metrics": b'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000000"} 1\n'
    b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n",
}


class FixedLatencyConnection(asyncio.Protocol):
    """One connection."""

    num_calls = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end]
            match = _LENGTH.search(head)
            length = int(match[1]) if match else 0
            if len(self._received) < end + 4 + length:
                return
            body, self._received = self._received[end + 4 : end + 4 + length], self._received[end + 4 + length :]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1]
        if path != b"/v1/chat/completions":
            status = b"200 OK" if path in _PAGES else b"404 Not Found"
            kind = b"text/plain" if path == b"/metrics" else b"application/json"
            self._send(status, kind, _PAGES.get(path, b'{"error":{"message":"no such path"}}'))
            return
        message, reason = self._message(body)
        delta = (
            b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"bench","choices":[{"index":0,'
        )
        if b'"stream":true' in body or b'"stream": true' in body:
            kind = b"text/event-stream"
            text = delta + b'"delta":%s,"finish_reason":null}]}\n\n' % message
            text += delta + b'"delta":{},"finish_reason":"%s"}],%s}\n\ndata: [DONE]\n\n' % (reason, _USAGE)
        else:
            kind = b"application/json"
            text = (
                b'{"id":"c","object":"chat.completion","created":1,"model":"bench","choices":[{"index":0,"message":%s,'
                b'"finish_reason":"%s"}],%s}' % (message, reason, _USAGE)
            )
        asyncio.get_running_loop().call_later(FORWARD_S, self._send, b"200 OK", kind, text)

    def _message(self, body: bytes) -> tuple[bytes, bytes]:
        FixedLatencyConnection.num_calls += 1
        file = _FILE.findall(body)[-1:] or [b"none"]
        if b'"role":"tool"' in body or b'"role": "tool"' in body or b'"tools"' not in body:
            return _OUTPUT % file[0], b"stop"
        return _CALL % (FixedLatencyConnection.num_calls, file[0]), b"tool_calls"

    def _send(self, status: bytes, kind: bytes, text: bytes) -> None:
        head = b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (status, kind, len(text))
        self._transport.write(head + text)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(
        FixedLatencyConnection, "127.0.0.1", port, backlog=4096
    )
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("port", type=int, metavar="PORT")
    asyncio.run(serve(parser.parse_args().port))
