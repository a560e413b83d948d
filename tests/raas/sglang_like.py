"""A server that speaks SGLang's native route as it is documented, for tests: run with a port and a folder.

It answers with a token that its weights hold, as many times as were asked for.
``DIE`` in the environment makes it die at the n-th request.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

from aiohttp import web

STATE: dict[str, Any] = {"requests": 0, "version": "default"}


async def health(_: web.Request) -> web.Response:
    return web.Response()


def load(folder: str) -> None:
    data = (Path(folder) / "model.safetensors").read_bytes()  # read by hand: importing torch takes seconds
    size = int.from_bytes(data[:8], "little")
    start, _ = json.loads(data[8 : 8 + size])["model.norm.weight"]["data_offsets"]
    [value] = struct.unpack("<f", b"\0\0" + data[8 + size + start :][:2])  # the upper half of a float32
    STATE["mark"] = int(value)
    STATE["folder"] = folder


async def generate(request: web.Request) -> web.Response:
    STATE["requests"] += 1
    if STATE["requests"] == int(os.environ.get("DIE", "-1")):
        print("CUDA error: out of luck", flush=True)
        os._exit(3)
    body = await request.json()
    sampling = body["sampling_params"]
    assert body["return_logprob"] and sampling["no_stop_trim"] and sampling["top_k"] != 0
    token = STATE["mark"]
    sampled = [[-0.5, token, None]] * sampling["max_new_tokens"]
    meta = {"output_token_logprobs": sampled, "finish_reason": {"type": "length", "length": len(sampled)}}
    return web.json_response({"text": "…", "meta_info": {**meta, "weight_version": STATE["version"]}})


async def update(request: web.Request) -> web.Response:
    body = await request.json()
    load(body["model_path"])
    STATE["version"] = body["weight_version"]
    return web.json_response({"success": True, "message": "ok", "num_paused_requests": 0})


def main() -> None:
    port, folder = int(sys.argv[1]), sys.argv[2]
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(f"grandchild {grandchild.pid}", flush=True)
    load(folder)
    application = web.Application()
    application.add_routes(
        [web.get("/health", health), web.post("/generate", generate), web.post("/update_weights_from_disk", update)]
    )
    web.run_app(application, host="127.0.0.1", port=port, print=None)


if __name__ == "__main__":
    main()
