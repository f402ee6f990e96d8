"""The system calls that the sandbox refuses, as a program for the kernel's filter (seccomp).

It is the second wall. Namespaces already hide files, processes and networks. The filter refuses the calls that
they do not cover (new processes, sockets that leave a virtual machine, memory that counts for no process), and the
parts of the kernel in which most holes were found.

A socket or a pipe holds memory of the kernel, which counts for no process. So their buffers keep their default
sizes, and none can be sent away over another socket: there are as many as open files.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from errno import ENOSYS, EPERM

_Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, constant."""
_LOAD, _EQUAL, _AT_LEAST, _HAS_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_SECOND_ARGUMENT_AT = 24
_F_SETPIPE_SZ = 1031
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000

_AF_UNIX = 1
_CLONE_THREAD = 0x10000
_X32 = 0x40000000
"""x86-64 has a second set of its calls, with this bit."""


@dataclass(frozen=True, slots=True)
class _Machine:
    """Numbers of one architecture, from its `unistd.h`."""

    audit_arch: int
    clone: int
    socket: int
    fcntl: int
    refused: tuple[int, ...]


_MACHINES = {
    "x86_64": _Machine(
        audit_arch=0xC000003E,
        clone=56,
        socket=41,
        fcntl=72,
        refused=(
            *(57, 58),  # fork, vfork
            *(101, 310, 311, 312),  # ptrace, process_vm_readv, process_vm_writev, kcmp
            *(248, 249, 250),  # add_key, request_key, keyctl
            *(165, 166, 155, 161, 272, 308),  # mount, umount2, pivot_root, chroot, unshare, setns
            *(321, 298, 323, 304),  # bpf, perf_event_open, userfaultfd, open_by_handle_at
            *(29, 68, 240, 319),  # shmget, msgget, mq_open, memfd_create
            *(46, 307, 54),  # sendmsg, sendmmsg, setsockopt
            *(179, 163, 167, 168, 169, 103, 135),  # quotactl, acct, swapon, swapoff, reboot, syslog, personality
            *(246, 320, 175, 313, 176),  # kexec_load, kexec_file_load, init_module, finit_module, delete_module
        ),
    ),
    "aarch64": _Machine(
        audit_arch=0xC00000B7,
        clone=220,
        socket=198,
        fcntl=25,
        refused=(
            *(117, 270, 271, 272),  # ptrace, process_vm_readv, process_vm_writev, kcmp
            *(217, 218, 219),  # add_key, request_key, keyctl
            *(40, 39, 41, 51, 97, 268),  # mount, umount2, pivot_root, chroot, unshare, setns
            *(280, 241, 282, 265),  # bpf, perf_event_open, userfaultfd, open_by_handle_at
            *(194, 186, 180, 279),  # shmget, msgget, mq_open, memfd_create
            *(211, 269, 208),  # sendmsg, sendmmsg, setsockopt
            *(60, 89, 224, 225, 142, 116, 92),  # quotactl, acct, swapon, swapoff, reboot, syslog, personality
            *(104, 294, 105, 273, 106),  # kexec_load, kexec_file_load, init_module, finit_module, delete_module
        ),
    ),
}
# These have the same numbers on all architectures.
_NEWER = (
    *(425, 426, 427),  # io_uring_setup, io_uring_enter, io_uring_register
    *(428, 429, 430),  # open_tree, move_mount, fsopen
    *(431, 432, 433, 442),  # fsconfig, fsmount, fspick, mount_setattr
    *(434, 438, 447),  # pidfd_open, pidfd_getfd, memfd_secret
)
_CLONE3 = 435


def program(machine: str = platform.machine()) -> bytes:
    """Return the filter for one architecture. Raises ValueError for one whose calls are not listed here."""
    if machine not in _MACHINES:
        raise ValueError(f"there is no list of system calls for {machine} (there is for {', '.join(_MACHINES)})")
    calls = _MACHINES[machine]
    instructions: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 1, 0, calls.audit_arch),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _ERROR | EPERM),
        # Its flags lie in memory, which a filter cannot read. Libraries use `clone` where it is missing.
        *_refused([_CLONE3], ENOSYS),
        *_refused((*calls.refused, *_NEWER), EPERM),
        *_refused_unless(calls.clone, _HAS_BIT, _CLONE_THREAD),
        *_refused_unless(calls.socket, _EQUAL, _AF_UNIX),
        *_refused_with(calls.fcntl, _F_SETPIPE_SZ),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def _refused(numbers: Iterable[int], errno: int) -> Iterable[_Instruction]:
    for number in numbers:
        yield (_EQUAL, 0, 1, number)
        yield (_RETURN, 0, 0, _ERROR | errno)


def _refused_with(number: int, constant: int) -> Iterable[_Instruction]:
    """Refuse a call with this second argument."""
    yield (_EQUAL, 0, 4, number)
    yield (_LOAD, 0, 0, _SECOND_ARGUMENT_AT)
    yield (_EQUAL, 0, 1, constant)
    yield (_RETURN, 0, 0, _ERROR | EPERM)
    yield (_RETURN, 0, 0, _ALLOW)


def _refused_unless(number: int, test: int, constant: int) -> Iterable[_Instruction]:
    """Refuse a call unless its first argument passes a test."""
    yield (_EQUAL, 0, 4, number)
    yield (_LOAD, 0, 0, _FIRST_ARGUMENT_AT)
    yield (test, 0, 1, constant)
    yield (_RETURN, 0, 0, _ALLOW)
    yield (_RETURN, 0, 0, _ERROR | EPERM)
