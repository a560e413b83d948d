"""``python -m infra.prefect_server FD``: a Prefect server on a listening socket that the parent opened.

The port is taken before anything slow happens, so two stacks never race for one, and clients that connect
early wait in the socket's backlog instead of polling.
"""

from __future__ import annotations

import socket
import sys

import uvicorn


def main() -> None:
    """Serve until SIGTERM."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    config = uvicorn.Config(
        "prefect.server.api.server:create_app",
        factory=True,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=3,
        log_level="warning",
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
