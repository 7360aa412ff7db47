"""The lineage store in MariaDB, written by ML Metadata's own client and read by an account that may only SELECT."""

import contextlib

import ml_metadata
import pymysql
import pytest
from ml_metadata.proto import metadata_store_pb2 as pb

from pipeline.errors import PipelineError
from pipeline.lineage import mysql
from pipeline.lineage.mysql import Address, MySQLLineage
from tests.pipeline.conftest import answers
from tests.pipeline.lineage import mariadb
from tests.pipeline.lineage.conformance import LineageConformance
from tests.pipeline.lineage.conftest import HandWritten

DATABASE = "lineage"

# What runs fill; types stay, which ML Metadata makes when it makes its tables.
FILLED = (
    "Artifact", "ArtifactProperty", "Association", "Attribution", "Context", "ContextProperty", "Event", "EventPath", "Execution",
    "ExecutionProperty", "ParentContext",
)  # fmt: skip


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    if reason := mariadb.missing():
        pytest.skip(reason)
    with mariadb.running(tmp_path_factory.mktemp("mariadb")) as server:
        server.sql(f"CREATE DATABASE {DATABASE}")
        yield server


@pytest.fixture
def written(server, places):
    """A writer of the database, which is empty."""
    made = HandWritten(places, server.config(DATABASE))
    server.sql(*(f"DELETE FROM `{table}`" for table in FILLED), database=DATABASE)
    return made


def opened(server, database=DATABASE, account=mariadb.AUDITOR) -> MySQLLineage:
    user, password = account
    return MySQLLineage(server.url(database, user), password)


class TestMLMDInMySQL(LineageConformance):
    @pytest.fixture
    def written(self, written):
        return written

    @pytest.fixture
    def lineage(self, written, server):
        return opened(server)


def test_the_auditor_s_account_may_not_write(server, written):
    with contextlib.closing(
        pymysql.connect(host="127.0.0.1", port=server.port, user=mariadb.AUDITOR[0], password=mariadb.AUDITOR[1], database=DATABASE)
    ) as connection, connection.cursor() as cursor, pytest.raises(pymysql.OperationalError, match="denied"):
        cursor.execute("DELETE FROM Event")


def test_not_even_an_account_that_may_write_does(server, written):
    written.run("run-1")
    lineage = opened(server, account=mariadb.WRITER)
    with pytest.raises(PipelineError, match="cannot be read .*READ ONLY"), lineage._opened() as session:
        session.rows("DELETE FROM Context")
    assert lineage.run_ids() == ["run-1"]


def test_names_in_a_database_of_another_character_set_are_the_same(server, places):
    server.sql("DROP DATABASE IF EXISTS lineage_utf8", "CREATE DATABASE lineage_utf8 CHARACTER SET utf8mb4")
    written = HandWritten(places, server.config("lineage_utf8"))
    table = "labels é ☃ 😀"
    made = written.new_artifact("pipeline.LabelSnapshot", {"table": table})
    written.step(written.run("run-é"), "SnapshotGen", outputs={"out": [made]})
    lineage = opened(server, "lineage_utf8")
    assert [use.run_id for use in lineage.uses("pipeline.LabelSnapshot", "table", [table])] == ["run-é"]
    assert lineage.run("run-é").output("pipeline.LabelSnapshot").facts == {"table": table}


def test_no_question_scans_the_associations(server, written, monkeypatch):
    """MariaDB's own plan, with so many rows that a scan would pay if it were possible at all."""
    for number in range(30):
        made = [written.new_artifact("pipeline.LabelSnapshot", {"table": f"labels_{number}"})]
        written.step(written.run(f"run-{number}"), "SnapshotGen", outputs={"out": made})
    server.sql(*(f"ANALYZE TABLE `{table}`" for table in FILLED), database=DATABASE)
    plans, real = [], mysql._MySQL.rows

    def rows(session, text, **values):
        if text.startswith("SELECT") and "MLMDEnv" not in text:
            plans.extend(real(session, f"EXPLAIN {text}", **values))
        return real(session, text, **values)

    monkeypatch.setattr(mysql._MySQL, "rows", rows)
    assert [use.run_id for use in opened(server).uses("pipeline.LabelSnapshot", "table", ["labels_7"])] == ["run-7"]
    assert plans and not [plan for plan in plans if plan[2] == "s" and plan[3] in ("ALL", "index")], plans


@pytest.mark.parametrize(
    ("database", "account", "told"),
    [
        (DATABASE, ("auditor", "wrong"), "refuses auditor .*the account needs SELECT .* LINEAGE_PASSWORD"),
        (DATABASE, ("nobody", ""), "refuses nobody"),
        ("other", mariadb.AUDITOR, "refuses auditor"),
        ("lineage_none", mariadb.AUDITOR, "is no lineage store .*Unknown database"),
        ("lineage_empty", mariadb.AUDITOR, "is no lineage store .*MLMDEnv"),
        ("lineage_old", mariadb.AUDITOR, "has schema version 9 of ML Metadata, and this code reads 10"),
    ],
)
def test_what_cannot_be_opened_is_named(server, database, account, told):
    server.sql("CREATE DATABASE IF NOT EXISTS lineage_empty", "CREATE DATABASE IF NOT EXISTS lineage_old")
    server.sql("CREATE OR REPLACE TABLE MLMDEnv AS SELECT 9 AS schema_version", database="lineage_old")
    with pytest.raises(PipelineError, match=rf"mysql://{account[0]}@127\.0\.0\.1:{server.port}/{database} {told}"):
        opened(server, database, account)


def test_a_server_that_is_not_there_is_named(server):
    with pytest.raises(PipelineError, match="mysql://a@127.0.0.1:1/b cannot be reached .*is the server up"):
        MySQLLineage("mysql://a@127.0.0.1:1/b", "")


def test_tables_that_somebody_locked_are_told_to_be_in_use(server, written, monkeypatch):
    monkeypatch.setattr(mysql, "_WAIT_SECONDS", 1)
    with contextlib.closing(server.connection(DATABASE)) as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLES MLMDEnv WRITE")
        with pytest.raises(PipelineError, match="is in use: somebody has locked its tables"):
            opened(server)
    assert opened(server).run_ids() == []


def test_ml_metadata_s_own_client_reads_with_select_alone_too(server, written):
    """So the account of an auditor serves other tools as well."""
    written.run("run-1")
    config = pb.ConnectionConfig()
    config.CopyFrom(server.config(DATABASE))
    config.mysql.user, config.mysql.password = mariadb.AUDITOR
    config.mysql.skip_db_creation = True
    assert [context.name for context in ml_metadata.MetadataStore(config).get_contexts()] == ["run-1"]


def test_every_question_has_the_answer_that_it_has_of_a_file(weeks, server, monkeypatch):
    written, runs = weeks
    server.copy(written.places.metadata, "lineage_weeks")
    monkeypatch.setenv(mysql.PASSWORD, mariadb.AUDITOR[1])
    monkeypatch.delenv(mysql.PASSWORD_FILE, raising=False)
    questions = [
        ["serving", "--on", "2026-03-09", "--json"], ["run", runs["second"], "--json"], ["run", runs["bad"]],
        ["diff", runs["first"], runs["second"]], ["image", "p3-a", "--json"], ["snapshot", "labels_20260316"],
        ["verify", runs["first"]], ["run", "unknown"],
    ]  # fmt: skip
    shared = ["--store", written.places.store]
    url = server.url("lineage_weeks")
    found = answers("pipeline.__main__", [["audit", *words, *shared] for words in questions] + [
        ["audit", *words, *shared, "--lineage", url] for words in questions
    ] + [["audit", "run", "x", *shared, "--lineage", "mysql://a:secret@b/c"]])  # fmt: skip
    *alike, unknown = zip(found[: len(questions)], found[len(questions) : -1], strict=True)
    for of_file, of_database in alike:
        assert of_database.out.splitlines() == of_file.out.splitlines()
        assert of_database == of_file and of_file.status == 0 and not of_file.loaded
    assert unknown[1].status == 1 and f"no run 'unknown' in the lineage store {url}" in unknown[1].err
    assert found[-1].status == 1 and "holds a password" in found[-1].err and "secret" not in found[-1].err


def test_an_address_is_read():
    assert Address.read("mysql://ana%40x@db.example:3307/lineage") == Address("ana@x", "db.example", 3307, "lineage")
    assert Address.read("mysql://ana@[::1]/lineage") == Address("ana", "::1", 3306, "lineage")
    assert str(Address.read("mysql://ana@db/lineage")) == "mysql://ana@db:3306/lineage"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("mysql://ana:secret@db/lineage", "holds a password, .*LINEAGE_PASSWORD or LINEAGE_PASSWORD_FILE"),
        ("postgres://ana@db/lineage", "is no address of a database: write mysql://USER@HOST"),
        ("mysql://db/lineage", "is no address"),
        ("mysql://ana@/lineage", "is no address"),
        ("mysql://ana@db", "is no address"),
        ("mysql://ana@db/a/b", "is no address"),
        ("mysql://ana@db:x/lineage", "is no address"),
        ("mysql://ana@db:99999/lineage", "is no address"),
        ("mysql://ana@db/lineage?ssl=1", "has more than it may"),
        ("mysql://ana@db/lineage?ca=/nowhere/ca.pem", "certificate authority /nowhere/ca.pem, and there is no such file"),
        ("lineage.sqlite", "is no address"),
    ],
)
def test_an_address_that_is_none_is_named_and_never_shows_a_password(url, told):
    with pytest.raises(PipelineError, match=told) as caught:
        Address.read(url)
    assert "secret" not in str(caught.value)


def test_the_password_comes_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv(mysql.PASSWORD_FILE, raising=False)
    monkeypatch.delenv(mysql.PASSWORD, raising=False)
    assert mysql.password_of_environment() == ""
    monkeypatch.setenv(mysql.PASSWORD, "from a variable")
    assert mysql.password_of_environment() == "from a variable"
    (tmp_path / "password").write_text("from a file \n")
    monkeypatch.setenv(mysql.PASSWORD_FILE, str(tmp_path / "password"))
    assert mysql.password_of_environment() == "from a file "
    monkeypatch.setenv(mysql.PASSWORD_FILE, str(tmp_path / "none"))
    with pytest.raises(PipelineError, match="LINEAGE_PASSWORD_FILE names .*none, which cannot be read: No such file"):
        mysql.password_of_environment()
