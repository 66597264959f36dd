"""The folder of one `simgpu run`, by which its processes know of each other. Needs no torch.

It holds what the machine has, an `nvidia-smi` for the PATH of child processes, and a socket for
each process that has allocated device memory. Who wants a process's figures asks at its socket, so
nothing is paid until somebody asks. Only the user can enter the folder; it goes with the command.
"""

from __future__ import annotations

import _thread
import atexit
import json
import os
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

from simgpu._config.gpus import Model, find
from simgpu._cuda.nvml.figures import Answer, Gpu, gpus_of
from simgpu._util.naming import RUN_FOLDER

_MACHINE = "machine.json"
_SOCKET = ".socket"
_PATIENCE = 5.0  # seconds until a process that does not answer is passed over
_SMI = """#!/bin/sh
exec {python} -I -S -c 'import sys
sys.path.insert(0, sys.argv[1])
from simgpu._cuda.nvml.smi import main
sys.exit(main(sys.argv[3:], sys.argv[2]))' {root} {folder} "$@"
"""


def _parent() -> Path:
    return Path(tempfile.gettempdir()) / f"simgpu-{os.getuid()}"


def make(program: str, machine: Sequence[tuple[int, Model]], smi: bool) -> None:
    """Make the folder of this process and of those that it starts, until it ends.

    With `smi`, they find an nvidia-smi in their PATH. Raises OSError where there can be no folder.
    """
    _parent().mkdir(mode=0o700, exist_ok=True)
    if _parent().stat().st_uid != os.getuid():
        raise PermissionError(f"{_parent()} is a folder of another user")
    for _ in running():  # which removes those of commands that were killed
        pass
    folder = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=_parent()))
    devices = [[model.key, total] for total, model in machine]
    text = json.dumps({"pid": os.getpid(), "program": program, "devices": devices})
    (folder / _MACHINE).write_text(text, encoding="utf-8")
    os.environ[RUN_FOLDER] = str(folder)
    atexit.register(_remove, folder, os.getpid())
    if smi:
        command = folder / "bin" / "nvidia-smi"
        command.parent.mkdir()
        words = {"python": sys.executable, "root": Path(__file__).parents[3], "folder": folder}
        quoted = {name: shlex.quote(str(word)) for name, word in words.items()}
        command.write_text(_SMI.format(**quoted), encoding="utf-8")
        command.chmod(0o700)
        os.environ["PATH"] = os.pathsep.join([str(command.parent), os.environ.get("PATH", "")])


def has_real_smi() -> bool:
    """Whether the PATH has an nvidia-smi that is none of ours."""
    found = shutil.which("nvidia-smi")
    return found is not None and _parent() not in Path(found).parents


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # and not a child that it forked
        shutil.rmtree(folder, ignore_errors=True)


def running() -> Iterator[tuple[Path, dict[str, Any]]]:
    """The folder of each `simgpu run` of this user that runs now, and what its machine has."""
    for folder in sorted(_parent().glob("*-*")):
        with suppress(OSError):
            about = json.loads((folder / _MACHINE).read_text(encoding="utf-8"))
            try:
                os.kill(about["pid"], 0)
            except ProcessLookupError:  # it was killed
                shutil.rmtree(folder, ignore_errors=True)
            else:
                yield folder, about


def gpus(folder: Path) -> list[Gpu]:
    """The GPUs of a run; raises OSError where it has ended."""
    about = json.loads((folder / _MACHINE).read_text(encoding="utf-8"))
    machine = [(total, find(key)) for key, total in about["devices"]]
    return gpus_of(machine, lambda: ask(folder))


def ask(folder: Path, but: int = 0) -> list[Answer]:
    """What the processes of a run answer, but for the one with a number."""
    answers = (_ask(path) for path in folder.glob(f"*{_SOCKET}") if path.stem != str(but))
    return sorted(filter(None, answers), key=itemgetter("pid"))


def _ask(path: Path) -> Answer | None:
    """What the process of a socket answers; None where it has ended, or has not answered."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_PATIENCE)
        try:
            asking.connect(str(path))
            text = b"".join(iter(lambda: asking.recv(65536), b""))
            answer: Answer | None = json.loads(text) if text else None
            return answer
        except ConnectionRefusedError:  # it was killed
            path.unlink(missing_ok=True)
        except OSError:
            pass
    return None


def answer_at_socket(folder: Path, answer: Callable[[], Answer]) -> None:
    """Answer the processes that ask this one, in a thread of its own, until the process ends.

    Nothing where the path of the folder is too long for a socket.
    """
    path = folder / f"{os.getpid()}{_SOCKET}"
    listener = socket.socket(socket.AF_UNIX)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen()
    except OSError:
        listener.close()
        return
    process, ended = os.getpid(), _thread.allocate_lock()
    ending: list[bool] = []

    def loop() -> None:
        while not ending:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                if not ending:
                    connection.sendall(json.dumps(answer()).encode())
        ended.release()

    def end() -> None:
        if os.getpid() == process:
            ending.append(True)
            with suppress(OSError), socket.socket(socket.AF_UNIX) as last:
                last.connect(str(path))
                ended.acquire(timeout=_PATIENCE)
            path.unlink(missing_ok=True)

    ended.acquire()
    # Not a thread of `threading`: programs count those, and wait for them.
    _thread.start_new_thread(loop, ())
    os.register_at_fork(after_in_child=listener.close)
    atexit.register(end)
