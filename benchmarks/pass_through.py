"""A bare pass-through with the gateway's HTTP library: what came in goes on, what comes back goes out, nothing is read.

`python -m benchmarks.pass_through UPSTREAM` prints its own address.
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
from aiohttp import web

_HOP = frozenset({"host", "content-length", "transfer-encoding", "connection"})


async def main(upstream: str) -> None:
    """Serve until stopped."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False) as http:

        async def forward(request: web.Request) -> web.StreamResponse:
            headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
            async with http.post(f"{upstream}{request.path}", data=await request.read(), headers=headers) as got:
                if got.headers.get("Transfer-Encoding") != "chunked":
                    return web.Response(body=await got.read(), status=got.status, content_type=got.content_type)
                answer = web.StreamResponse(status=got.status, headers={"Content-Type": got.content_type})
                await answer.prepare(request)
                async for piece in got.content.iter_any():
                    await answer.write(piece)
                await answer.write_eof()
                return answer

        app = web.Application()
        app.router.add_post("/{path:.*}", forward)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
