"""Vertex's Vizier API on one machine: a gRPC server on the loopback over one file of studies.

    .venv-vizier/bin/python -m pipeline.vizier.service --database studies.sqlite

Prints one line of JSON, {"address": "127.0.0.1:PORT", "pid": PID}, when it serves; ends with status 0 on SIGTERM and
SIGINT, and with --with-stdin also when its standard input does, as it does when the process that started it dies. Google's
own client talks to it: `VizierServiceClient(transport=VizierServiceGrpcTransport(channel=grpc.insecure_channel(ADDRESS)))`.
No credentials: whoever can reach the loopback of this machine can use it.
"""

import argparse
import concurrent.futures
import json
import logging
import os
import re
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable, Sequence

import grpc
import proto
from google.cloud import aiplatform_v1 as v1
from google.longrunning import operations_pb2

from pipeline.errors import PipelineError
from pipeline.vizier import algorithms
from pipeline.vizier.database import Database
from pipeline.vizier.methods import Methods
from pipeline.vizier.refusals import Code, Refused

_log = logging.getLogger(__name__)

VIZIER = "google.cloud.aiplatform.v1.VizierService"
OPERATIONS = "google.longrunning.Operations"

CALLS = {
    VIZIER: (
        "CreateStudy", "GetStudy", "LookupStudy", "ListStudies", "DeleteStudy", "SuggestTrials", "CreateTrial", "GetTrial",
        "ListTrials", "DeleteTrial", "AddTrialMeasurement", "CompleteTrial", "StopTrial", "CheckTrialEarlyStoppingState",
        "ListOptimalTrials",
    ),
    OPERATIONS: ("GetOperation", "DeleteOperation"),
}  # fmt: skip
"""The calls of each gRPC service that are answered; any other is UNIMPLEMENTED."""

_THREADS = 32
"""Calls at once; one that waits for its suggestion holds a thread for a moment."""

_GRACE_SECONDS = 1.0
"""What calls under way get to end in. A suggestion is not waited for: it is made when the service starts again."""


def start(methods: Methods, port: int) -> tuple[grpc.Server, int]:
    """Starts to serve.

    Args:
        methods: What answers.
        port: A port of the loopback; 0 for one that is free.

    Returns:
        The server, and its port.

    Raises:
        PipelineError: The port is taken.
    """
    server = grpc.server(
        concurrent.futures.ThreadPoolExecutor(_THREADS),
        # Otherwise a second server on the same port would get half of the calls.
        options=[("grpc.so_reuseport", 0)],
    )
    for service, calls in CALLS.items():
        messages = v1 if service == VIZIER else operations_pb2
        handlers = {call: _handler(methods, call, getattr(messages, f"{call}Request")) for call in calls}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    try:
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
    except RuntimeError as error:
        raise PipelineError(
            f"port {port} of the loopback cannot be had: name another --port, or 0 for a free one"
        ) from error
    server.start()
    return server, bound


def _handler(methods: Methods, call: str, request_type) -> grpc.RpcMethodHandler:
    method = getattr(methods, re.sub(r"(?<!^)(?=[A-Z])", "_", call).lower())
    read = request_type.deserialize if issubclass(request_type, proto.Message) else request_type.FromString
    return grpc.unary_unary_rpc_method_handler(_answering(method), request_deserializer=read, response_serializer=_bytes)


def _answering(method: Callable) -> Callable:
    def answer(request, context: grpc.ServicerContext):
        try:
            return method(request)
        except Refused as refused:
            context.abort(refused.code, str(refused))
        except sqlite3.Error as error:
            _log.exception("%s failed", method.__name__)
            context.abort(Code.RESOURCE_EXHAUSTED, f"the store of studies cannot be used ({error}): is the disk full?")

    return answer


def _bytes(message) -> bytes:
    return type(message).serialize(message) if isinstance(message, proto.Message) else message.SerializeToString()


def main(words: Sequence[str] | None = None) -> int:
    """Serves until it is told to end; returns the exit status."""
    options = _parser().parse_args(words)
    # Libraries tell of every fit, and of accelerators that are not there.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="vizier: %(levelname)s %(message)s")
    logging.getLogger("pipeline").setLevel(logging.INFO)
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    try:
        database = Database(options.database)
        server, port = start(Methods(database, options.algorithm, options.seed), options.port)
    except PipelineError as error:
        print(f"vizier: {error}", file=sys.stderr)
        return error.exit_status
    print(json.dumps({"address": f"127.0.0.1:{port}", "pid": os.getpid()}), flush=True)
    if options.with_stdin:
        threading.Thread(target=lambda: (sys.stdin.buffer.read(), end.set()), daemon=True).start()
    end.wait()
    server.stop(_GRACE_SECONDS).wait()
    database.close()
    sys.stdout.flush()
    sys.stderr.flush()
    # A suggestion under way is left alone; to unload the interpreter under JAX's threads would end in a crash.
    os._exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline.vizier.service", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--database", required=True, metavar="FILE", help="where the studies are kept; made if it is not there"
    )
    parser.add_argument("--port", type=_port, default=0, help="port of the loopback; 0, the default, takes a free one")
    parser.add_argument(
        "--algorithm",
        choices=algorithms.DEFAULTS,
        default=algorithms.DEFAULTS[0],
        help="for new studies that leave the choice to the service (default: %(default)s); a study keeps its own",
    )
    parser.add_argument("--seed", type=_seed, default=0, help="of new studies' suggestions (default: 0)")
    parser.add_argument("--with-stdin", action="store_true", help="end when standard input ends")
    return parser


def _port(text: str) -> int:
    return _between(text, 0, 65535)


def _seed(text: str) -> int:
    return _between(text, 0, 2**31 - 1)


def _between(text: str, least: int, most: int) -> int:
    if not text.isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
