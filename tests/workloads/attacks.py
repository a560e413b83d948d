# ruff: noqa: E501 - a program a line
"""What hostile submissions try. Each says how it must be reported, and what it must not have seen.

``HELD`` is printed by an attack that was refused what it wanted; ``BROKEN`` by one that got it.
"""

from __future__ import annotations

from dataclasses import dataclass

SECRET = "the-host-said-a-secret"


@dataclass(frozen=True)
class Attack:
    """``function`` names what is called; without one the source runs as a program. ``ended`` are the fitting reports."""

    source: str
    ended: tuple[str, ...] = ("ended",)
    stdout: str | None = "HELD\n"
    function: str = ""
    value: object = None
    error: tuple[str, ...] = ()


def refused(action: str, errors: str = "OSError") -> Attack:
    """An action that must raise one of ``errors``."""
    return Attack(
        f"import os, sys\ntry:\n    {action}\nexcept {errors} as e:\n    print('HELD')\nelse:\n    print('BROKEN')"
    )


def looks(body: str) -> Attack:
    """Code that collects what it can see into ``seen``."""
    return Attack(f"import os\nseen = ''\n{body}\nprint('BROKEN' if {SECRET!r} in seen else 'HELD')")


ATTACKS: dict[str, Attack] = {
    "fork bomb": refused("while True: os.fork()"),
    "memory by forks": refused("[os.fork() for _ in range(8)]; x = bytearray(400 << 20)"),
    "spawn": refused("os.posix_spawn(sys.executable, ['python', '-c', ''], {})"),
    "exec": refused("os.execv(sys.executable, ['python', '-c', 'print(\"BROKEN\")'])"),
    "shell": Attack("import subprocess\ntry:\n    subprocess.run('id', shell=True)\nexcept OSError:\n    print('HELD')"),
    "thread bomb": Attack(
        "import threading, time\nthreading.stack_size(32768)\nstarted = 0\ntry:\n"
        "    while True:\n        threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); started += 1\n"
        "except RuntimeError:\n    print('HELD' if started < 200 else started)",
    ),
    "memory": Attack("x = bytearray(8 << 30)", ("memory",), ""),
    "memory by steps": Attack("x = []\nwhile True: x.append(bytearray(16 << 20))", ("memory",), ""),
    "endless loop": Attack("while True: pass", ("timeout",), ""),
    "sleeps for ever": Attack("import time\ntime.sleep(1000)", ("timeout",), ""),
    "ignored signals": Attack(
        "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\n"
        "while True: pass",
        ("timeout",),
        "",
    ),
    "output flood": Attack("while True: print('x' * 65536)", ("output",), None),
    "error flood": Attack("import sys\nwhile True: print('x' * 65536, file=sys.stderr)", ("output",), None),
    "disk fill": Attack(
        "import os\nheld = 0\nfor folder in ('/tmp', '/dev/shm', '/', '/dev', '/warden', '/usr', '.'):\n    try:\n"
        "        for n in range(200):\n            with open(f'{folder}/fill{n}', 'wb') as f: f.write(bytes(8 << 20))\n"
        "    except OSError: held += 1\nprint('HELD' if held == 7 else 'BROKEN')"
    ),
    "memory files": refused("os.memfd_create('x')"),
    "_exit(0)": Attack("import os\nos._exit(0)", ("ended",), ""),
    "_exit(0) in a function": Attack("import os\ndef f(): os._exit(0)", ("no_result",), "", "f"),
    "exit in a function": Attack("import sys\ndef f(): sys.exit(0)", ("error",), "", "f", error=("SystemExit",)),
    "exit 0 with no output": Attack("raise SystemExit(0)", ("ended",), ""),
    "environment": looks("seen = str(dict(os.environ))"),
    "proc environment": looks(
        "for pid in ('1', 'self', str(os.getppid())):\n    for name in ('environ', 'cmdline', 'maps'):\n"
        "        try: seen += open(f'/proc/{pid}/{name}', 'rb').read().decode('latin-1')\n        except OSError: pass"
    ),
    "host files": looks(
        "for path in ('SECRET_FILE', '/etc/passwd', '/etc/shadow', '/root/.bashrc', '/proc/1/root/SECRET_FILE'):\n"
        "    try: seen += open(path).read() + 'the-host-said-a-secret'\n    except OSError: pass"
    ),
    "host folders": Attack(
        "import os\nfound = []\nfor path in ('/home', '/root', '/tmp', '/proc', '/sys', '/var', 'SECRET_FOLDER'):\n"
        "    try: found += os.listdir(path)\n    except OSError: pass\nprint('HELD' if not found else found)"
    ),
    "change modes": refused("os.chmod('SECRET_FILE', 0o777)"),
    "write host": refused("open('SECRET_FILE', 'a')"),
    "network": refused("__import__('socket').create_connection(('127.0.0.1', LOCAL_PORT), 1)"),
    "datagrams": refused("__import__('socket').socket(__import__('socket').AF_INET, __import__('socket').SOCK_DGRAM)"),
    "abstract socket": refused("__import__('socket').socket(__import__('socket').AF_UNIX).connect('\\0astraflow-test')"),
    "ptrace": Attack(
        "import ctypes, os\nl = ctypes.CDLL(None, use_errno=True)\n"
        "got = [l.ptrace(16, os.getppid(), 0, 0), l.ptrace(0, 0, 0, 0)]\nprint('HELD' if got == [-1, -1] else 'BROKEN')"
    ),
    "memory of the warden": refused("open(f'/proc/{os.getppid()}/mem', 'r+b')"),
    "user namespace": Attack(
        "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\n"
        "print('HELD' if l.unshare(0x10000000) == -1 and l.syscall(56, 0x10000000 | 17, 0, 0, 0, 0) == -1 else 'BROKEN')"
    ),
    "signal the warden": refused("os.kill(os.getppid(), 9)"),
    "signal everybody": refused("os.kill(-1, 9)"),
    "signal by file": Attack(
        "import fcntl, os\nr, w = os.pipe()\ntry: fcntl.fcntl(r, fcntl.F_SETOWN, os.getppid())\n"
        "except OSError: print('HELD')\nelse: print('BROKEN')"
    ),
    "raise own limits": Attack(
        "import resource\ntry: resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n"
        "except (OSError, ValueError): print('HELD')\nelse: print('BROKEN')"
    ),
    "become root": refused("os.setuid(0)"),
    "child that holds stdout": Attack(
        "import os\nprint('HELD', flush=True)\nif os.fork() == 0:\n    import time; time.sleep(1000)",
        ("error",),
        error=("PermissionError",),
    ),
    "setsid daemon": refused("os.setsid()"),
    "detached thread holds stdout": Attack(
        "import _thread, time, os\n_thread.start_new_thread(time.sleep, (1000,))\nprint('HELD')"
    ),
    "fake verdict": Attack(
        "import json, os, struct\ndef f():\n    for fake in ({'value': 1, 'passed': True}, {'said': {'value': 1}}, {'ask': 'f'}):\n"
        "        body = json.dumps(fake).encode()\n        try: os.write(3, struct.pack('>I', len(body)) + body)\n"
        "        except OSError: pass\n    print('{\"passed\": true}', flush=True)\n    os._exit(0)",
        ("ended",),
        '{"passed": true}\n',
        "f",
        value=1,  # a value like any other: to be right it would have to know the right one
    ),
    "garbage on the result channel": Attack(
        "import os\ndef f():\n    os.write(3, b'\\xff' * 3)\n    os._exit(0)", ("no_result",), "", "f"
    ),
    "flood on the result channel": Attack(
        "import os\ndef f():\n    while True: os.write(3, b'\\xff' * 65536)", ("output",), "", "f"
    ),
    "deep result": Attack(
        "import os, struct\ndef f():\n    body = b'{\"value\":' + b'[' * 50000 + b']' * 50000 + b'}'\n"
        "    os.write(3, struct.pack('>I', len(body)) + body)\n    os._exit(0)",
        ("no_result",),
        "",
        "f",
    ),
    "__eq__ always true": Attack(
        "class Yes:\n    def __eq__(self, other): return True\ndef f(): return Yes()",
        ("error",),
        "",
        "f",
        error=("NotPlainError",),
    ),
    "list whose __eq__ is true": Attack(
        "class Yes(list):\n    def __eq__(self, other): return True\n    def __iter__(self): return iter([9])\n"
        "def f(): return Yes([1])",
        ("ended",),
        "",
        "f",
        value=[1],
    ),
    "shadowed json": Attack("json = None\nlist = str = dict = print = None\ndef f(): return 5", function="f", value=5, stdout=""),
    "shadowed print": Attack("def print(*a): pass\nimport sys\nsys.stdout.write('HELD\\n')"),
    "broken builtins": Attack(
        "import builtins, json, sys\nbuiltins.print = builtins.open = None\njson.dumps = None\nsys.stdout.write('HELD\\n')"
    ),
    "lone surrogates": Attack("def f(): return chr(0xd800)", function="f", value=chr(0xD800), stdout=""),
    "prints lone surrogates": Attack("print(chr(0xd800))", ("error",), "", error=("UnicodeEncodeError",)),
    "invalid UTF-8": Attack("import sys\nsys.stdout.buffer.write(b'\\xff\\xfe')", stdout="\udcff\udcfe"),
    "NaN": Attack("def f(): return [float('nan')].__len__() and float('-inf')", function="f", value=float("-inf"), stdout=""),
    "4300-digit int": Attack("def f(): return 10 ** 5000", function="f", value=10**5000, stdout=""),
    "prints a 4301-digit int": Attack("print(10 ** 5000)", ("error",), "", error=("ValueError",)),
    "setrecursionlimit": Attack(
        "import sys\nsys.setrecursionlimit(10**9)\ndef g(n): return repr_of(n)\n"
        "class R:\n    def __repr__(self): return repr(self)\nrepr(R())",
        ("crashed", "memory"),
        "",
    ),
    "recursion in Python": Attack("def f(n): return f(n + 1)\nf(0)", ("error",), "", error=("RecursionError",)),
    "segmentation fault": Attack("import ctypes\nctypes.string_at(0)", ("crashed",), ""),
    "abort": Attack("import os\nos.abort()", ("crashed",), ""),
    "kills itself": Attack("import os\nos.kill(os.getpid(), 9)", ("killed",), ""),
    "closed stdin": Attack("import os, sys\nos.close(0)\nprint('HELD')"),
    "closes everything": Attack("import os\nos.closerange(0, 200)", ("error", "ended"), ""),
    "reads beyond stdin": Attack("import sys\nprint('HELD' if sys.stdin.read() == '' else 'BROKEN')"),
    "source that does not parse": Attack("def (", ("error",), "", error=("SyntaxError",)),
    "source that nests too deeply": Attack("(" * 5000 + ")" * 5000, ("error", "crashed", "memory"), ""),
    "exits in threads": Attack(
        "import threading, os\nthreading.Thread(target=lambda: os._exit(7)).start()\nimport time\ntime.sleep(5)", ("error",), ""
    ),
    "error whose text breaks": Attack(
        "class E(Exception):\n    def __str__(self): raise KeyError\nraise E", ("error",), "", error=("E",)
    ),
}  # fmt: skip
