"""The lineage store on ML Metadata in MySQL or MariaDB, read by an account that need have no right but SELECT."""

import contextlib
import dataclasses
import os
import urllib.parse
from collections.abc import Iterator

import pymysql

from pipeline.errors import PipelineError
from pipeline.lineage.mlmd_sql import BY_TIME, Session, SQLLineage, check_version, filled
from pipeline.validation.text import printable

PASSWORD, PASSWORD_FILE = "LINEAGE_PASSWORD", "LINEAGE_PASSWORD_FILE"
"""Environment variables: the password, or the file that holds it. On a command line everybody on the machine would see it."""

_FORM = "mysql://USER@HOST[:PORT]/DATABASE[?ca=FILE]"

_WAIT_SECONDS = 5

_READ_SECONDS = 60

# https://mariadb.com/kb/en/mariadb-error-codes/; MySQL has the same numbers.
_DENIED, _UNKNOWN_DATABASE, _NO_TABLE = (1044, 1045, 1142, 1698), (1049,), (1146,)
_LOCKED, _UNREACHABLE = (1205, 3024, 1969), (2003, 2006, 2013)


@dataclasses.dataclass(frozen=True)
class Address:
    """Where a database is.

    Attributes:
        user, host, port, database: As MySQL's clients have them.
        ca: File of the authority whose certificate the server must show; empty for no encryption.
    """

    user: str
    host: str
    port: int
    database: str
    ca: str = ""

    @classmethod
    def read(cls, url: str) -> "Address":
        """Reads mysql://USER@HOST[:PORT]/DATABASE[?ca=FILE].

        Raises:
            PipelineError: It is no such address, or holds a password.
        """
        try:
            parts = urllib.parse.urlsplit(url)
            options = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
            port = parts.port or 3306
        except ValueError as error:
            raise PipelineError(f"--lineage is no address of a database ({error}): write {_FORM}") from error
        if parts.password is not None:
            # Without the address: it would show the password once more.
            raise PipelineError(f"--lineage holds a password, which others can see there: name it by {PASSWORD} or {PASSWORD_FILE}")
        user, database = urllib.parse.unquote(parts.username or ""), urllib.parse.unquote(parts.path.removeprefix("/"))
        if parts.scheme != "mysql" or not user or not parts.hostname or not database or "/" in database:
            raise PipelineError(f"--lineage {printable(url)} is no address of a database: write {_FORM}")
        ca = options.pop("ca", "")
        if options or parts.fragment:
            raise PipelineError(f"--lineage {printable(url)} has more than it may: write {_FORM}")
        if ca and not os.path.isfile(ca):
            raise PipelineError(f"--lineage names the certificate authority {printable(ca)}, and there is no such file")
        return cls(user, parts.hostname, port, database, ca)

    def __str__(self) -> str:
        return f"mysql://{self.user}@{self.host}:{self.port}/{self.database}"


def password_of_environment() -> str:
    """The password that the environment names; empty when it names none.

    Raises:
        PipelineError: Its file cannot be read.
    """
    path = os.environ.get(PASSWORD_FILE)
    if not path:
        return os.environ.get(PASSWORD, "")
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read().rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PipelineError(f"{PASSWORD_FILE} names {path}, which cannot be read: {reason}") from error


class MySQLLineage(SQLLineage):
    """Reads ML Metadata's tables in MySQL 8 or MariaDB 10.6 and newer.

    Args:
        url: mysql://USER@HOST[:PORT]/DATABASE[?ca=FILE].
        password: The account's.

    Raises:
        PipelineError: The address is none, the database cannot be reached or read, or holds something else.
    """

    def __init__(self, url: str, password: str):
        # As bytes: of a text, the driver sends Latin-1.
        self._address, self._password = Address.read(url), password.encode()
        self._connection: pymysql.Connection | None = None
        self.place = str(self._address)
        with self._opened() as session:
            found = session.rows("SELECT schema_version FROM MLMDEnv")
        check_version(found, self.place)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Session]:
        try:
            # One connection for all questions: to prepare encryption takes longer than most answers.
            if self._connection is None:
                self._connection = self._connected()
            with self._connection.cursor() as cursor:
                # One view of everything, as of now, and no write however this code may err.
                cursor.execute("START TRANSACTION READ ONLY, WITH CONSISTENT SNAPSHOT")
                yield _MySQL(cursor)
                cursor.execute("ROLLBACK")
        except (pymysql.MySQLError, OSError) as error:
            self._connection = None
            raise self._refused(error) from error

    def _connected(self) -> pymysql.Connection:
        address = self._address
        connection = pymysql.connect(
            host=address.host, port=address.port, user=address.user, password=self._password, database=address.database,
            charset="latin1", connect_timeout=_WAIT_SECONDS, read_timeout=_READ_SECONDS, ssl_ca=address.ca or None,
            ssl_verify_cert=bool(address.ca) or None, ssl_verify_identity=bool(address.ca) or None,
        )  # fmt: skip
        # ML Metadata sends UTF-8 over connections that it leaves at latin1, and reads it back so.
        connection.encoding = "utf-8"
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION lock_wait_timeout = {_WAIT_SECONDS}")
        return connection

    def _refused(self, error: Exception) -> PipelineError:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        said = printable(str(error.args[-1] if error.args else error))
        if code in _DENIED:
            return PipelineError(
                f"the lineage store {self.place} refuses {self._address.user} ({said}): the account needs SELECT on the database, "
                f"and its password in {PASSWORD}, or in the file that {PASSWORD_FILE} names"
            )
        if code in _UNKNOWN_DATABASE + _NO_TABLE:
            return PipelineError(f"{self.place} is no lineage store ({said}): name the database that ML Metadata writes to")
        if code in _LOCKED:
            return PipelineError(
                f"the lineage store {self.place} is in use: somebody has locked its tables for {_WAIT_SECONDS} s. Ask again later"
            )
        if code in _UNREACHABLE or isinstance(error, OSError):
            return PipelineError(f"the lineage store {self.place} cannot be reached ({said}): is the server up, and let in from here?")
        return PipelineError(f"the lineage store {self.place} cannot be read ({said})")


class _MySQL(Session):
    by_time = f"FORCE INDEX ({BY_TIME})"

    def __init__(self, cursor: pymysql.cursors.Cursor):
        self._cursor = cursor

    def rows(self, text, **values):
        text, given = filled(text.replace("%", "%%"), values, "%s")
        self._cursor.execute(text, given)
        return list(self._cursor.fetchall())
