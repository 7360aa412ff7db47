"""An interpreter that has TFX imported and forks itself: each fork runs a module as `python -m` would.

    python -m tests.cloud.vertex.forks SOCKET

Each connection to the socket carries one line of JSON: argv, environment, folder, log; it is answered with the process id
and, when the process has ended, with its exit status. Ends, with all that it forked, when its standard input does.
"""

import contextlib
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys

_PRELOADED = (
    "tfx.v1",
    "tfx.orchestration.kubeflow.v2.file_based_example_gen.driver",
    "tfx.scripts.run_executor",
    "tfx.extensions.google_cloud_ai_platform.trainer.executor",
    "tf_keras",
)


def _serve(address: str) -> dict | None:
    """Forks for each request; returns, in the fork alone, the request, and None when it is the end."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    wakes, wakened = socket.socketpair()
    wakes.setblocking(False)
    wakened.setblocking(False)
    # A signal without a handler wakes nobody.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno())
    selector = selectors.DefaultSelector()
    for source in (listener, wakened, sys.stdin):
        selector.register(source, selectors.EVENT_READ)
    print("ready", flush=True)
    children: dict[int, socket.socket] = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                for pid in children:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
                return None
            if key.fileobj is wakened:
                wakened.recv(4096)
                _reap(children)
                continue
            connection, _ = listener.accept()
            with connection.makefile("r") as lines:
                request = json.loads(lines.readline())
            pid = os.fork()
            if not pid:
                # First, so that whoever learns of the process can signal its group.
                os.setsid()
                connection.sendall(f"{os.getpid()}\n".encode())
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                selector.close()
                for each in (listener, wakes, wakened, connection, *children.values()):
                    each.close()
                return request
            children[pid] = connection


def _reap(children: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            with children.pop(pid) as connection, contextlib.suppress(OSError):
                connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _become(request: dict) -> list[str]:
    """Makes this process what a fresh one would be; returns the module and its arguments."""
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, targets in ((nothing, (0,)), (log, (1, 2))):
        for target in targets:
            os.dup2(source, target)
        os.close(source)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _, _, module, *arguments = request["argv"]
    sys.path[0] = os.getcwd()
    sys.orig_argv = list(request["argv"])
    sys.argv = [module, *arguments]
    # What this file brought along, and what is to run once more from its beginning.
    for name in [name for name in sys.modules if name == module or name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    random.seed()
    with contextlib.suppress(KeyError):
        sys.modules["numpy.random"].seed()
    return [module, *arguments]


if __name__ == "__main__":
    for _name in _PRELOADED:
        importlib.import_module(_name)
    # What is there by now stays: no fork looks through it for garbage, which would copy every page.
    gc.collect()
    gc.freeze()
    _request = _serve(sys.argv[1])
    if _request is None:
        os._exit(0)  # nothing to tidy up, and to unload TensorFlow takes seconds
    else:
        _module, *_ = _become(_request)
        del _request
        # The end of this call is the end of the interpreter, with all that a module has to do then.
        runpy.run_module(_module, run_name="__main__", alter_sys=True)
