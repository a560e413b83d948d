"""The commands of the documents work: every ``console`` fence is run, in order, in a copy of the checkout.

Lines that start with ``$ `` are commands; they go on in lines that start with ``> ``, and after a backslash at the end.
The others show what they print and are not compared, because times and numbers differ. All fences of a document are one
session: ``cd`` and ``export`` carry over. Each command must exit with 0. A comment right above a fence says what is
special about it:

    <!-- test: e2e -->                    minutes long: run only by the test with that marker
    <!-- test: skip: needs a GPU -->      never run, and why
    <!-- test: shows: run stopped -->     the fence's output has this text; several notes are separated by «;»
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_FENCE = re.compile(
    r"(?:^<!--\s*test:(?P<notes>[^\n]*?)-->\n\s*)?^```(?P<kind>\w*)[^\n]*\n(?P<body>.*?)^```\s*$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_END = "\x1e"


@dataclass(frozen=True)
class Fence:
    """One console fence: its commands, where it stands, and its notes."""

    line: int
    commands: list[str]
    e2e: bool = False
    skip: str = ""
    shows: list[str] = field(default_factory=list)


def parse_fences(text: str) -> list[Fence]:
    """The console fences of a Markdown text that have commands, in order."""
    fences = []
    for match in _FENCE.finditer(text):
        if match["kind"] != "console":
            continue
        line = text.count("\n", 0, match.start("body")) + 1
        notes = [note.strip() for note in (match["notes"] or "").split(";") if note.strip()]
        known = {note.partition(":")[0].strip() for note in notes}
        assert known <= {"e2e", "skip", "shows"}, f"line {line}: unknown notes {known}"
        values = [(name.strip(), value.strip()) for name, _, value in (note.partition(":") for note in notes)]
        skip = next((value or "no reason" for name, value in values if name == "skip"), "")
        shows = [value for name, value in values if name == "shows"]
        commands = parse_commands(match["body"])
        if commands:
            fences.append(Fence(line, commands, "e2e" in known, skip, shows))
    return fences


def parse_commands(body: str) -> list[str]:
    """The lines after ``$ ``, continued over backslashes and in lines that begin with ``> ``."""
    commands: list[str] = []
    goes_on = in_command = False
    for line in body.splitlines():
        if goes_on or (in_command and line.startswith("> ")):
            commands[-1] += "\n" + line.removeprefix("> ")
        elif line.startswith("$ "):
            commands.append(line[2:])
        else:
            in_command = False
            continue
        goes_on, in_command = line.endswith("\\"), True
    return commands


def run_session(fences: list[Fence], folder: Path, env: dict[str, str], *, timeout_s: float) -> list[str]:
    """Run the commands of all fences in one shell; the output of each fence. Fails at the first command that fails."""
    commands = [(fence, command) for fence in fences for command in fence.commands]
    script = "\n".join(f"{command}\n__rc=$?; [ $__rc = 0 ] || exit $__rc; printf '{_END}'" for _, command in commands)
    log = folder.parent / "session.log"
    with log.open("wb") as output:
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = shell.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end_group(shell.pid)
            shell.wait()
    outputs = log.read_text(errors="replace").split(_END)
    if code != 0:
        done = min(len(outputs), len(commands)) - 1  # the mark after its output is missing
        fence, command = commands[done]
        how = "took too long" if code is None else f"exited with {code}"
        raise AssertionError(f"line {fence.line}: `{command}` {how}:\n{outputs[done]}")
    shown = dict.fromkeys(range(len(fences)), "")
    places = [index for index, fence in enumerate(fences) for _ in fence.commands]
    for index, text in zip(places, outputs, strict=False):
        shown[index] += text
    return list(shown.values())


def end_group(pid: int) -> None:
    """Kill what the session left behind in its own process group."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def check_document(document: Path, folder: Path, *, e2e: bool, timeout_s: float) -> None:
    """Run a document's fences, the long ones only if asked, and look for what they promise to show."""
    fences = [fence for fence in parse_fences(document.read_text()) if not fence.skip and (e2e or not fence.e2e)]
    assert fences, f"{document.name} has no commands to run"
    checkout = copy_checkout(folder / "checkout")
    for fence, output in zip(
        fences, run_session(fences, checkout, environment(folder), timeout_s=timeout_s), strict=True
    ):
        for text in fence.shows:
            assert text in output, f"{document.name}, line {fence.line}: {text!r} is not in:\n{output}"


def copy_checkout(target: Path) -> Path:
    """The checkout's files as git sees them, with this environment as ``.venv``."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    (target / ".venv").symlink_to(sys.prefix)
    return target


def environment(folder: Path) -> dict[str, str]:
    """This environment's programs first, and a home of its own."""
    home = folder / "home"
    home.mkdir()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "ASTRAFLOW_"))}
    return {**kept, "PATH": path, "HOME": str(home)}


def documents_with(*, e2e: bool) -> list[Path]:
    """The documents that have commands of this length, those never to be run left out."""
    return [
        path
        for path in DOCUMENTS
        if any(not fence.skip and fence.e2e == e2e for fence in parse_fences(path.read_text()))
    ]


@pytest.mark.parametrize("document", documents_with(e2e=False), ids=lambda path: path.name)
def test_the_short_commands_of_a_document_work(document: Path, tmp_path: Path) -> None:
    check_document(document, tmp_path, e2e=False, timeout_s=240)


@pytest.mark.e2e
@pytest.mark.operator
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("document", documents_with(e2e=True), ids=lambda path: path.name)
def test_all_commands_of_a_document_work(document: Path, tmp_path: Path) -> None:
    check_document(document, tmp_path, e2e=True, timeout_s=1700)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(document: Path) -> None:
    targets = [match["target"].partition("#")[0] for match in _LINK.finditer(document.read_text())]
    local = [target for target in targets if target and "://" not in target and not target.startswith("mailto:")]
    assert [target for target in local if not (document.parent / target).exists()] == []


# --- the machinery itself -----------------------------------------------------------------------

EXAMPLE = """
# Title

```python
print("$ not a command")
```

```console
$ echo one \\
>   two
one two
$ export NAME=world && cd sub
```

<!-- test: e2e; shows: hello world; shows: /sub -->
```console
$ echo hello $NAME
hello world
$ pwd
```

<!-- test: skip: needs a GPU -->
```console
$ nvidia-smi
```

```console
output only
```
"""


def test_fences_are_parsed_with_their_notes() -> None:
    first, second, third = parse_fences(EXAMPLE)
    assert first == Fence(9, ["echo one \\\n  two", "export NAME=world && cd sub"])
    assert second == Fence(17, ["echo hello $NAME", "pwd"], e2e=True, shows=["hello world", "/sub"])
    assert (third.commands, third.skip) == (["nvidia-smi"], "needs a GPU")


def test_an_unknown_note_is_refused() -> None:
    with pytest.raises(AssertionError, match="unknown notes"):
        parse_fences("<!-- test: slow -->\n```console\n$ true\n```\n")


def test_a_session_carries_folder_and_variables_over(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    (folder / "sub").mkdir(parents=True)
    first, second = run_session(parse_fences(EXAMPLE)[:2], folder, dict(os.environ), timeout_s=60)
    assert first == "one two\n"
    assert "hello world" in second
    assert "/here/sub" in second


def test_a_command_goes_on_in_lines_that_say_so() -> None:
    body = '$ python -c "\n> x = 1\n> print(x)"\n1\n> output\n$ true\n'
    assert parse_commands(body) == ['python -c "\nx = 1\nprint(x)"', "true"]


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        (["true", "echo why; false", "true"], "`echo why; false` exited with 1:\nwhy"),
        (["no-such-program"], "`no-such-program` exited with 127"),
        (["true", "echo start; exit 3"], "`echo start; exit 3` exited with 3:\nstart"),
        (["true", "sleep 60"], "`sleep 60` took too long"),
    ],
)
def test_a_command_that_fails_is_named_with_its_output(tmp_path: Path, commands: list[str], message: str) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    with pytest.raises(AssertionError, match=re.escape(message)):
        run_session([Fence(1, commands)], folder, dict(os.environ), timeout_s=3)


def test_a_promise_that_is_not_kept_fails(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("<!-- test: shows: blue -->\n```console\n$ echo red\n```\n")
    with pytest.raises(AssertionError, match="'blue' is not in"):
        check_document(document, tmp_path, e2e=False, timeout_s=60)
