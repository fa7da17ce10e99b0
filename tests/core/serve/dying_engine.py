"""Engines that end their process; a started process imports them by this module's name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from camshaft.core.errors import CapacityError
from camshaft.core.serve.engine.process import EXIT_FATAL

WHY = "weights need 80 GiB"
# Its start alone takes longer than the end of the engine process that starts it.
MESSENGER = """
import sys, zmq
from camshaft.core.messages import Fatal, encode
context = zmq.Context()
socket = context.socket(zmq.PAIR)
socket.connect(sys.argv[1])
socket.send(encode(Fatal(sys.argv[2], "CapacityError")))
socket.close(linger=2000)
context.term()
"""


def refused() -> NoReturn:
    raise CapacityError(WHY)


def misnamed() -> NoReturn:
    raise CapacityError("caf\udce9: no room")


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def silent(left: Path) -> None:
    left.touch()
    os._exit(EXIT_FATAL)


def late(folder: str) -> None:
    (address,) = Path(folder).glob("camshaft-*/engine")
    subprocess.Popen([sys.executable, "-c", MESSENGER, f"ipc://{address}", WHY])
    os._exit(EXIT_FATAL)
