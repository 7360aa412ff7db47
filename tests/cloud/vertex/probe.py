"""Prints what a process can see of itself, and ends in the way that its first argument asks for."""

import atexit
import json
import os
import signal
import sys
import threading


def seen() -> dict:
    """What this process can see of itself, without what differs from process to process."""
    main = sys.modules["__main__"]
    return {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv[1:],
        "path": sys.path,
        "name": [main.__name__, main.__spec__.name, main.__package__, main.__file__, main.seen is seen],
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "stdin": sys.stdin.read(),
        "files": [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")[:-1]],
        "handlers": {str(number): str(signal.getsignal(number)) for number in (1, 2, 15, 17, 13)},
        "wakeup": signal.set_wakeup_fd(-1),
        "group": [os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid()],
        "umask": os.umask(0),
        "threads": threading.active_count(),
        "tensorflow": "tensorflow" in sys.modules,
        "own modules": sorted(name for name in sys.modules if name.split(".")[0] in ("tests", "pipeline", "models")),
    }


if __name__ == "__main__":
    atexit.register(lambda: print("the end", flush=True))
    print(json.dumps(seen()), flush=True)
    {
        "return": lambda: None,
        "exit": lambda: sys.exit(5),
        "say": lambda: sys.exit("a word"),
        "raise": lambda: 1 / 0,
        "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    }[sys.argv[1]]()
