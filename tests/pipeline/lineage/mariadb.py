"""MariaDB of Debian's packages on this machine: a server of its own on loopback, with its data in a folder of the tests."""

import contextlib
import getpass
import pathlib
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator

import ml_metadata
import pymysql
from ml_metadata.proto import metadata_store_pb2 as pb

WRITER, AUDITOR = ("writer", "w'1 \"é"), ("auditor", "a")
"""Account and password: one that may do anything with databases that begin with `lineage`, one that may only SELECT there."""

_SECONDS = 60

_ROWS = 10_000
"""Written at once."""

# Nothing here must outlive a power cut.
_OPTIONS = (
    "--innodb-log-file-size=4M", "--innodb-buffer-pool-size=32M", "--innodb-doublewrite=0", "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=nosync", "--aria-log-file-size=8M", "--sync-frm=0",
)  # fmt: skip


def missing() -> str:
    """Why there can be no server here; empty when there can."""
    programs = [name for name in ("mariadbd", "mariadb-install-db") if not _program(name)]
    return f"{' and '.join(programs)} not installed: Debian's package mariadb-server has them" if programs else ""


def _program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/bin")


class MariaDB:
    """A running server.

    Attributes:
        port: Where it listens, on 127.0.0.1.
    """

    def __init__(self, folder: pathlib.Path, port: int):
        self._socket, self.port = folder / "socket", port

    def sql(self, *statements: str, database: str | None = None) -> list[tuple]:
        """Runs statements as the administrator; returns the rows of the last."""
        with contextlib.closing(self.connection(database)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            connection.commit()
            return list(cursor.fetchall())

    def connection(self, database: str | None = None, charset: str = "utf8mb4") -> pymysql.Connection:
        """A connection as the administrator."""
        return pymysql.connect(unix_socket=str(self._socket), user="root", database=database, charset=charset)

    def url(self, database: str, user: str = AUDITOR[0]) -> str:
        """The address of a database, as the audit takes it."""
        return f"mysql://{user}@127.0.0.1:{self.port}/{database}"

    def config(self, database: str) -> pb.ConnectionConfig:
        """The same for ML Metadata's own client, which writes."""
        config = pb.ConnectionConfig()
        config.mysql.host, config.mysql.port, config.mysql.database = "127.0.0.1", self.port, database
        config.mysql.user, config.mysql.password = WRITER
        return config

    def copy(self, path: str, database: str) -> None:
        """Makes a database that holds what ML Metadata's SQLite file does, ids and all."""
        self.sql(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")
        ml_metadata.MetadataStore(self.config(database))
        with contextlib.closing(sqlite3.connect(path)) as source, contextlib.closing(self.connection(database, "latin1")) as target:
            # As ML Metadata sends it: UTF-8 over a connection that is left at latin1.
            target.encoding = "utf-8"
            tables = source.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'").fetchall()
            for (table,) in tables:
                found = source.execute(f"SELECT * FROM `{table}`")
                columns = ", ".join(f"`{column}`" for column, *_ in found.description)
                marks = ", ".join(["%s"] * len(found.description))
                with target.cursor() as cursor:
                    cursor.execute(f"DELETE FROM `{table}`")
                    while rows := found.fetchmany(_ROWS):
                        cursor.executemany(f"INSERT INTO `{table}` ({columns}) VALUES ({marks})", rows)
            target.commit()
            with target.cursor() as cursor:
                cursor.execute(f"ANALYZE TABLE {', '.join(f'`{table}`' for (table,) in tables)}")


@contextlib.contextmanager
def running(folder: pathlib.Path) -> Iterator[MariaDB]:
    """Starts a server whose data is in a new folder, and ends it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--no-defaults", f"--datadir={folder / 'data'}", f"--user={getpass.getuser()}", *_OPTIONS]
    install = [_program("mariadb-install-db"), *words, "--auth-root-authentication-method=normal", "--skip-test-db"]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL, timeout=_SECONDS)
    server = MariaDB(folder, port)
    start = [
        _program("mariadbd"), *words, "--bind-address=127.0.0.1", f"--port={port}", f"--socket={server._socket}",
        f"--pid-file={folder / 'pid'}", "--skip-name-resolve",
    ]  # fmt: skip
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(start, stdout=log, stderr=log)
    try:
        _wait(server, process, folder / "log")
        for (user, password), rights in ((WRITER, "ALL"), (AUDITOR, "SELECT")):
            with contextlib.closing(server.connection()) as connection, connection.cursor() as cursor:
                cursor.execute("CREATE USER %s@'127.0.0.1' IDENTIFIED BY %s", (user, password))
                cursor.execute(f"GRANT {rights} ON `lineage%%`.* TO %s@'127.0.0.1'", (user,))
        yield server
    finally:
        process.terminate()
        process.wait(_SECONDS)


def _wait(server: MariaDB, process: subprocess.Popen, log: pathlib.Path) -> None:
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            return server.connection().close()
        except pymysql.MySQLError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"MariaDB did not start ({error}): {log.read_text(errors='replace')[-2000:]}") from error
            time.sleep(0.05)
