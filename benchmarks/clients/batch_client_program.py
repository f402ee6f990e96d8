"""What a user writes: one batch with batch-agent (0.2.0 or ours, whichever is installed), and with bare aiohttp.

    python benchmarks/clients/batch_client_program.py ARM PORT NUM_AGENTS NUM_FILES

ARM is `batch-agent`, `batch-agent-plain` (with the options that make 0.2.0 fastest), or `naive`. Prints one JSON
object. Imports neither the benchmarks nor the gateway, so that it runs where only batch-agent 0.2.0 is installed.
"""

import asyncio
import hashlib
import json
import os
import resource
import sys
import time
from typing import Any

from pydantic import BaseModel

TOOL_S = 0.2
SYSTEM = "You review notes and report on them. " * 176
"""6.5 KB."""
tool_runs = 0


class Report(BaseModel):
    file: str
    summary: str


async def read_notes(path: str) -> str:
    """Read a file of notes."""
    global tool_runs
    tool_runs += 1
    await asyncio.sleep(TOOL_S)
    return f"The notes in {path}."


async def with_batch_agent(port: int, num_agents: int, num_files: int, **options: Any) -> tuple[list[Any], float]:
    """Outputs in order, and the seconds until the first."""
    from batch_agent import BatchAgent, Tool

    results: list[tuple[int, Any]] = []
    firsts: list[float] = []
    started = time.perf_counter()
    async for result in BatchAgent.stream(
        task="Report on {file}",
        inputs=[{"file": f"notes-{index % num_files}.txt"} for index in range(num_agents)],
        system_prompt=SYSTEM,
        tools=[Tool.define(read_notes)],
        output_schema=Report,
        model="bench",
        backend=f"vllm://127.0.0.1:{port}",
        max_inflight=num_agents,
        max_turns=2,
        **options,
    ):
        firsts.append(time.perf_counter() - started)
        results.append((result.index, result.output))
    return [output for _, output in sorted(results, key=lambda result: result[0])], firsts[0]


async def naive(port: int, num_agents: int, num_files: int) -> tuple[list[Any], float]:
    import aiohttp

    url = os.environ.get("OPENAI_BASE_URL", f"http://127.0.0.1:{port}/v1") + "/chat/completions"
    function = {
        "name": "read_notes",
        "description": "Read a file of notes.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    }
    schema = {"type": "json_schema", "json_schema": {"name": "Report", "schema": Report.model_json_schema()}}
    started = time.perf_counter()
    firsts: list[float] = []

    async def agent(session: aiohttp.ClientSession, index: int) -> Report:
        task = f"Report on notes-{index % num_files}.txt"
        messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]
        body = {"model": "bench", "messages": messages, "tools": [{"type": "function", "function": function}]}
        async with session.post(url, json=body) as response:
            message = (await response.json())["choices"][0]["message"]
        messages.append(message)
        for call in message["tool_calls"]:
            text = await read_notes(**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
        async with session.post(url, json=body | {"response_format": schema}) as response:
            message = (await response.json())["choices"][0]["message"]
        firsts.append(time.perf_counter() - started)
        return Report.model_validate_json(message["content"])

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        return await asyncio.gather(*(agent(session, index) for index in range(num_agents))), min(firsts)


def main() -> None:
    arm, port, num_agents, num_files = sys.argv[1], *map(int, sys.argv[2:5])
    if arm == "naive":
        import aiohttp  # noqa: F401 - not part of the run

        work = naive(port, num_agents, num_files)
    else:
        import batch_agent  # noqa: F401

        options = {"kvflow": False} if arm == "batch-agent-plain" else {}
        work = with_batch_agent(port, num_agents, num_files, **options)
    wall, cpu = time.perf_counter(), time.process_time()
    outputs, first_s = asyncio.run(work)
    wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    text = "\n".join("failed" if output is None else output.model_dump_json() for output in outputs)
    print(
        json.dumps(
            {
                "wall_s": wall_s,
                "cpu_s": cpu_s,
                "first_s": first_s,
                "tool_runs": tool_runs,
                "num_ok": sum(output is not None for output in outputs),
                "sha256": hashlib.sha256(text.encode()).hexdigest()[:16],
                "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
        )
    )


if __name__ == "__main__":
    main()
