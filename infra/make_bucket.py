"""``python -m infra.make_bucket NAME``: a bucket on the S3 server of ``AWS_ENDPOINT_URL``, if it is not there."""

from __future__ import annotations

import os
import sys

from infra.s3_server import S3Server


def main() -> None:
    """Make it, or find it there."""
    server = S3Server(
        os.environ["AWS_ENDPOINT_URL"], os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    )
    print(server.create_bucket(sys.argv[1]))  # noqa: T201


if __name__ == "__main__":
    main()
