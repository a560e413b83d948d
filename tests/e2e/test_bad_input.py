"""Wrong input at the command line: one message with place and remedy, its exit code, and nothing written."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from infra.s3_server import S3Server
from tests.e2e.runs import write_recipes
from tests.e2e.stack import Answer, LocalStack, Shell

NOWHERE = "http://127.0.0.1:9"  # the discard port: nobody listens
FILE = ["problems.source=p.jsonl", "problems.options=null"]
SECRET = "not-the-secret-0123456789"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A folder with recipes and without a stack."""
    write_recipes(tmp_path)
    return Shell(tmp_path)


@pytest.fixture
def near(stack: LocalStack, shell: Shell) -> Shell:
    """The same folder, with the session's stack as the local one."""
    shell.environment["ASTRAFLOW_HOME"] = str(stack.home)
    return shell


def refused(answer: Answer, code: int, *words: str) -> None:
    """One message and nothing else."""
    assert answer.code == code, f"{answer.code}\n{answer.out}\n{answer.err}"
    assert answer.err.startswith("error: "), answer.err
    assert "Traceback" not in answer.err + answer.out
    for word in words:
        assert word in answer.err, f"{word!r} is not in: {answer.err}"


def nothing_written(shell: Shell) -> None:
    """No object lies in the store; the folder itself may have been made."""
    assert [path for path in (shell.folder / "store").rglob("*") if path.is_file()] == []


# --- said without a Prefect server -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "small.toml", "trainer.stepz=4"], ["trainer.stepz", "'steps'"]),
        (["run", "small.toml", "workflow.roles.solver=critic"], ["workflow.roles.solver", "'critic'", "solver"]),
        (["run", "small.toml", "--dry-run", "workflow.name=solve_and_verify"], ["verifier", "workflow.roles.verifier"]),
        (["run", "small.toml", "--dry-run", "policies.solver.model=no/such"], ["policies.solver.model", "tiny-qwen3"]),
        (["run", "small.toml", "--dry-run", *FILE], ["p.jsonl:2", "prompt"]),
        (["run", "--resume", "ghost"], ["no store", "--store"]),
    ],
    ids=lambda value: " ".join(value[1:])[:50] if isinstance(value, list) else None,
)
def test_what_the_user_wrote_is_wrong(shell: Shell, arguments: list[str], words: list[str]) -> None:
    (shell.folder / "p.jsonl").write_text('{"prompt": "1+1=", "answer": "20"}\n{"answer": "30"}\n')
    refused(shell.astraflow(*arguments), 2, *words)
    nothing_written(shell)


def test_no_server_and_no_stack(shell: Shell) -> None:
    refused(shell.astraflow("run", "small.toml"), 4, "no Prefect server", "astraflow up")
    refused(shell.astraflow("run", "small.toml", PREFECT_API_URL=f"{NOWHERE}/api"), 4, NOWHERE, "PREFECT_API_URL")
    nothing_written(shell)


def test_a_run_that_is_not_there(shell: Shell) -> None:
    (shell.folder / "store").mkdir()
    for arguments in (["run", "--resume", "ghost"], ["query", "select 1", "--run", "ghost"]):
        refused(shell.astraflow(*arguments), 2, "ghost")
    nothing_written(shell)


def test_a_store_that_nobody_serves(shell: Shell) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "some", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    answer = shell.astraflow("runs", "--store", "s3://bucket/prefix", AWS_ENDPOINT_URL=NOWHERE, **keys)
    refused(answer, 3, "s3://bucket/prefix", "127.0.0.1:9")
    assert SECRET not in answer.err


# --- said at launch ------------------------------------------------------------------------------


@pytest.mark.e2e
def test_launching_what_cannot_work_writes_nothing(near: Shell) -> None:
    (near.folder / "p.jsonl").write_text('{"prompt": "1+1=", "answer": "20"}\n\n[1, 2]\n')
    for overrides, words in (
        (["policies.solver.model=no/such"], ["policies.solver.model"]),
        (["workflow.name=solve_and_verify"], ["verifier", "workflow.roles"]),
        (FILE, ["p.jsonl:3", "JSON object"]),
    ):
        refused(near.astraflow("run", "small.toml", *overrides), 2, *words)
    nothing_written(near)


@pytest.mark.e2e
def test_a_flow_run_that_refuses_its_config_says_why(near: Shell, stack: LocalStack) -> None:
    """A server elsewhere: what is wrong there (a folder of that machine) only its flow run can know."""
    config = ["run", "small.toml", "policies.solver.model=no/such"]
    refused(near.astraflow(*config, PREFECT_API_URL=stack.stack.api_url), 4, "policies.solver.model", "no/such")
    nothing_written(near)


@pytest.mark.e2e
def test_a_name_that_is_taken(near: Shell) -> None:
    taken = near.folder / "store" / "small" / "run.toml"
    taken.parent.mkdir(parents=True)
    taken.write_text("# another's\n")
    refused(near.astraflow("run", "small.toml"), 2, "'small'", "name=", "--resume small")
    files = [path for path in (near.folder / "store").rglob("*") if path.is_file()]
    assert files == [taken]
    assert taken.read_text() == "# another's\n"


@pytest.mark.e2e
def test_wrong_credentials(near: Shell, s3_server: S3Server) -> None:
    store = f"store={s3_server.create_bucket('tests')}/wrong"
    environment = {**s3_server.environment, "AWS_SECRET_ACCESS_KEY": SECRET}
    answer = near.astraflow("run", "small.toml", store, **environment)
    refused(answer, 3, "AWS_SECRET_ACCESS_KEY")
    assert SECRET not in answer.err
    entries = near.astraflow(
        "runs", "--store", f"{s3_server.create_bucket('tests')}/wrong", "--json", **s3_server.environment
    )
    assert entries.ok().json == []


@pytest.mark.e2e
def test_a_store_without_conditional_create(near: Shell) -> None:
    with careless_s3() as (endpoint, objects, touched):
        keys = {"AWS_ACCESS_KEY_ID": "some", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
        answer = near.astraflow("run", "small.toml", "store=s3://bucket/prefix", AWS_ENDPOINT_URL=endpoint, **keys)
    refused(answer, 3, "s3://bucket/prefix", "lose data", "conditional writes")
    assert objects == {}
    assert touched
    assert all(key.startswith("prefix/probes/") for key in touched)


@contextlib.contextmanager
def careless_s3() -> Iterator[tuple[str, dict[str, bytes], set[str]]]:
    """An S3 server that takes ``If-None-Match`` and ignores it; yields its URL, objects, and the keys ever written."""
    objects: dict[str, bytes] = {}
    touched: set[str] = set()

    class Handler(BaseHTTPRequestHandler):
        def reply(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"0"')
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.end_headers()
            self.wfile.write(body)

        @property
        def key(self) -> str:
            return self.path.partition("?")[0].removeprefix("/bucket/")

        def do_PUT(self) -> None:
            touched.add(self.key)
            objects[self.key] = self.rfile.read(int(self.headers["Content-Length"]))
            self.reply(200)

        def do_GET(self) -> None:
            self.reply(200, objects[self.key]) if self.key in objects else self.reply(404)

        def do_POST(self) -> None:
            """Delete several objects."""
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            keys = re.findall(r"<Key>(.*?)</Key>", body)
            for key in keys:
                objects.pop(key, None)
            deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
            self.reply(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", objects, touched
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
