"""The filter of system calls that a submission lives behind: what is not listed is refused with EPERM.

Listed is what an interpreter needs to compute, to read and write files, and to run threads. Not listed, so not there:
other processes (fork, exec, signals to others, ptrace, pidfd), sockets, namespaces, mounts, shared memory outside the
limit of the address space, ownership and modes of files, io_uring, keys, bpf. A few are let through by their
arguments. The table is of numbers, since a name means nothing to the kernel; machines without one are refused.
"""

from __future__ import annotations

import ctypes
import platform
import signal
import struct

_X86_64 = """
    access=21 alarm=37 arch_prctl=158 brk=12 capget=125 chdir=80 clock_getres=229 clock_gettime=228
    clock_nanosleep=230 close=3 close_range=436 creat=85 dup=32 dup2=33 dup3=292 epoll_create=213 epoll_create1=291
    epoll_ctl=233 epoll_pwait=281 epoll_wait=232 eventfd2=290 exit=60 exit_group=231 faccessat=269 faccessat2=439
    fadvise64=221 fchdir=81 fdatasync=75 flock=73 fstat=5 fstatfs=138 fsync=74 ftruncate=77 futex=202 getcpu=309
    getcwd=79 getdents=78 getdents64=217 getegid=108 geteuid=107 getgid=104 getgroups=115 getitimer=36 getpgid=121
    getpgrp=111 getpid=39 getppid=110 getrandom=318 getresgid=120 getresuid=118 getrlimit=97 getrusage=98 getsid=124
    gettid=186 gettimeofday=96 getuid=102 get_robust_list=274 lseek=8 lstat=6 madvise=28 membarrier=324 mincore=27
    mkdir=83 mkdirat=258 mmap=9 mprotect=10 mremap=25 msync=26 munmap=11 nanosleep=35 newfstatat=262 open=2
    openat=257 pause=34 pipe=22 pipe2=293 poll=7 ppoll=271 pread64=17 preadv=295 pselect6=270 pwrite64=18
    pwritev=296 read=0 readlink=89 readlinkat=267 readv=19 rename=82 renameat=264 renameat2=316 restart_syscall=219
    rmdir=84 rseq=334 rt_sigaction=13 rt_sigpending=127 rt_sigprocmask=14 rt_sigreturn=15 rt_sigsuspend=130
    rt_sigtimedwait=128 sched_getaffinity=204 sched_getparam=143 sched_getscheduler=145 sched_get_priority_max=146
    sched_get_priority_min=147 sched_yield=24 select=23 set_robust_list=273 set_tid_address=218 setitimer=38
    setrlimit=160 sigaltstack=131 stat=4 statfs=137 statx=332 sysinfo=99 time=201 times=100 truncate=76 umask=95
    uname=63 unlink=87 unlinkat=263 wait4=61 waitid=247 write=1 writev=20
"""
_AARCH64 = """
    brk=214 capget=90 chdir=49 clock_getres=114 clock_gettime=113 clock_nanosleep=115 close=57 close_range=436
    dup=23 dup3=24 epoll_create1=20 epoll_ctl=21 epoll_pwait=22 eventfd2=19 exit=93 exit_group=94 faccessat=48
    faccessat2=439 fadvise64=223 fchdir=50 fdatasync=83 flock=32 fstat=80 fstatfs=44 fsync=82 ftruncate=46 futex=98
    getcpu=168 getcwd=17 getdents64=61 getegid=177 geteuid=175 getgid=176 getgroups=158 getitimer=102 getpgid=155
    getpid=172 getppid=173 getrandom=278 getresgid=150 getresuid=148 getrlimit=163 getrusage=165 getsid=156
    gettid=178 gettimeofday=169 getuid=174 get_robust_list=100 lseek=62 madvise=233 membarrier=283 mincore=232
    mkdirat=34 mmap=222 mprotect=226 mremap=216 msync=227 munmap=215 nanosleep=101 fstatat=79 openat=56 pipe2=59
    ppoll=73 pread64=67 preadv=69 pselect6=72 pwrite64=68 pwritev=70 read=63 readlinkat=78 readv=65 renameat=38
    renameat2=276 restart_syscall=128 rseq=293 rt_sigaction=134 rt_sigpending=136 rt_sigprocmask=135
    rt_sigreturn=139 rt_sigsuspend=133 rt_sigtimedwait=137 sched_getaffinity=123 sched_getparam=121
    sched_getscheduler=120 sched_get_priority_max=125 sched_get_priority_min=126 sched_yield=124 set_robust_list=99
    set_tid_address=96 setitimer=103 setrlimit=164 sigaltstack=132 statfs=43 statx=291 sysinfo=179 times=153
    truncate=45 umask=166 uname=160 unlinkat=35 wait4=260 waitid=95 write=64 writev=66
"""
_FEW = {  # those with conditions: prlimit64 kill tgkill clone clone3 fcntl ioctl
    "x86_64": (302, 62, 234, 56, 435, 72, 16),
    "aarch64": (261, 129, 131, 220, 435, 25, 29),
}
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_TABLES = {"x86_64": _X86_64, "aarch64": _AARCH64}

_LOAD, _EQUAL, _BITS, _RETURN = 0x20, 0x15, 0x45, 0x06  # BPF_LD|W|ABS, JMP|JEQ|K, JMP|JSET|K, RET|K
_NUMBER, _ARCH, _ARG0, _ARG1 = 0, 4, 16, 24  # offsets in struct seccomp_data; low words of the arguments
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_CLONE_THREAD = 0x10000
_FCNTL_DENIED = (8, 10, 15, 1031)  # F_SETOWN, F_SETSIG, F_SETOWN_EX signal others; F_SETPIPE_SZ takes memory
_IOCTL_ALLOWED = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIO(N)CLEX


def machine() -> str:
    """This machine's name in the tables. Raises ``OSError`` if there is none for it."""
    name = platform.machine()
    if name not in _TABLES:
        raise OSError(f"there is no table of system calls for {name}")
    return name


def program(pid: int) -> bytes:
    """The filter for the process ``pid`` (which may signal itself), as BPF instructions."""
    name = machine()
    prlimit64, kill, tgkill, clone, clone3, fcntl, ioctl = _FEW[name]
    code = [_op(_LOAD, _ARCH), _op(_EQUAL, _AUDIT[name], 1, 0), _op(_RETURN, _KILL), _op(_LOAD, _NUMBER)]
    for entry in _TABLES[name].split():
        code += [_op(_EQUAL, int(entry.partition("=")[2]), 0, 1), _op(_RETURN, _ALLOW)]
    code += _when(clone3, [_op(_RETURN, _ERRNO | _ENOSYS)])  # the C library then asks clone, whose flags can be seen
    code += _when(clone, [_op(_LOAD, _ARG0), _op(_BITS, _CLONE_THREAD, 0, 1), _op(_RETURN, _ALLOW)])
    code += _when(kill, _one_of(_ARG0, (pid,)))
    code += _when(tgkill, _one_of(_ARG0, (pid,)))
    code += _when(prlimit64, _one_of(_ARG0, (0, pid)))
    code += _when(ioctl, _one_of(_ARG1, _IOCTL_ALLOWED))
    denied = [op for value in _FCNTL_DENIED for op in (_op(_EQUAL, value, 0, 1), _op(_RETURN, _ERRNO | _EPERM))]
    code += _when(fcntl, [_op(_LOAD, _ARG1), *denied, _op(_RETURN, _ALLOW)])
    return b"".join([*code, _op(_RETURN, _ERRNO | _EPERM)])


def die_with_parent() -> None:
    """Be killed when the process that forked this one ends."""
    if ctypes.CDLL(None, use_errno=True).prctl(1, int(signal.SIGKILL), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_PDEATHSIG was refused")


def install(code: bytes) -> None:
    """Put this process and all its threads to come behind the filter, for good. Raises ``OSError``."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(code, len(code))
    fprog = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    for arguments in ((38, 1, 0, 0, 0), (22, 2, ctypes.c_char_p(fprog), 0, 0)):  # NO_NEW_PRIVS, SECCOMP filter
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "the filter of system calls was refused")


def _op(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("HBBI", code, then, otherwise, value)


def _when(number: int, body: list[bytes]) -> list[bytes]:
    """``body``, which returns or falls through to a refusal, for one system call."""
    body = [*body, _op(_RETURN, _ERRNO | _EPERM)]
    return [_op(_EQUAL, number, 0, len(body)), *body]


def _one_of(argument: int, values: tuple[int, ...]) -> list[bytes]:
    """Allow if the low word of the argument is one of ``values``."""
    allowed = [op for value in values for op in (_op(_EQUAL, value, 0, 1), _op(_RETURN, _ALLOW))]
    return [_op(_LOAD, argument), *allowed]
