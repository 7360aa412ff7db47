"""How deploy/Dockerfile is read and carried out without an engine. Nothing is run in a root of its own here: that is `make image-rehearsal`."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def modules(monkeypatch, tmp_path):
    """`rehearse` and `dockerfile`, with stages under tmp_path."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(ROOT / "deploy"))
    monkeypatch.syspath_prepend(str(ROOT / "requirements"))
    import dockerfile
    import rehearse

    monkeypatch.setattr(rehearse, "FOLDER", tmp_path / "rehearsal")
    (tmp_path / "rehearsal").mkdir()
    yield rehearse, dockerfile
    for name in set(sys.modules) - before & {"rehearse", "dockerfile", "image", "current", "bootstrap"}:
        del sys.modules[name]


def test_continued_lines_are_one_and_comments_are_none(modules):
    _, dockerfile = modules
    text = "# a comment\nARG BASE\nFROM ${BASE} AS one\nRUN a \\\n    # why\n    && b \\\n    && c\n\nENV A=1 \\\n    B=\"x y\"\n"
    found = dockerfile.parse(text)
    assert [(each.line, each.keyword, each.rest) for each in found] == [
        (2, "ARG", "BASE"), (3, "FROM", "${BASE} AS one"), (4, "RUN", "a && b && c"), (9, "ENV", 'A=1 B="x y"'),
    ]  # fmt: skip
    assert found[3].words({}) == ["A=1", "B=x y"] and found[1].words({"BASE": "debian"}) == ["debian", "AS", "one"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FROM x\nHEALTHCHECK NONE\n", "line 2: HEALTHCHECK is none of ARG, FROM"),
        ("FROM x\nRUN a \\\n", "line 2: the last instruction has no end"),
    ],
)
def test_what_is_not_understood_stops_the_rehearsal(modules, text, words):
    _, dockerfile = modules
    with pytest.raises(dockerfile.DockerfileError, match=words):
        dockerfile.parse(text)


def test_a_variable_that_is_not_there_is_an_error(modules):
    _, dockerfile = modules
    with pytest.raises(dockerfile.DockerfileError, match="line 1: there is no variable BASE"):
        dockerfile.parse("FROM ${BASE}\n")[0].words({})


def test_every_instruction_of_the_dockerfile_can_be_carried_out(modules):
    rehearse, dockerfile = modules
    found = dockerfile.parse((ROOT / "deploy" / "Dockerfile").read_text())
    assert {each.keyword for each in found} == set(dockerfile.KEYWORDS)
    assert all(hasattr(rehearse.Rehearsal, f"_{keyword.lower()}") for keyword in dockerfile.KEYWORDS)
    assert [each.rest for each in found if each.keyword == "USER"] == ["retrain"]


@pytest.fixture
def rehearsal(modules, tmp_path):
    rehearse, dockerfile = modules
    for name, content in {"context/LICENSE": "l", "context/models/a.py": "a", "base/etc/name": "debian", "tools/opt/t": "t"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "context" / "models" / "link").symlink_to("a.py")

    def carry_out(text: str):
        stand_ins = {"BASE": tmp_path / "base", "TOOLS": tmp_path / "tools"}
        return rehearse.Rehearsal(tmp_path / "context", {"BASE": "BASE", "TOOLS": "TOOLS", "COMMIT": "c0ffee"}, stand_ins).carry_out(
            dockerfile.parse(text)
        )

    return carry_out


def test_files_come_where_docker_puts_them(rehearsal):
    stage = rehearsal(
        "ARG BASE\nARG TOOLS\nFROM ${TOOLS} AS tools\nFROM ${BASE}\nCOPY --from=tools /opt /opt\nWORKDIR /app\n"
        "COPY LICENSE ./\nCOPY models/ models/\nARG COMMIT\nENV PATH=/app/bin:${PATH} COMMIT=${COMMIT}\nUSER retrain\n"
        'ENTRYPOINT ["/opt/t", "a b"]\n'
    )
    files = {str(path.relative_to(stage.root)) for path in stage.root.rglob("*") if not path.is_dir()}
    assert files == {"etc/name", "opt/t", "app/LICENSE", "app/models/a.py", "app/models/link"}
    assert (stage.root / "app/models/link").is_symlink()
    assert stage.environment == {"PATH": "/app/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "COMMIT": "c0ffee"}
    assert stage.state == {"workdir": "/app", "user": "retrain", "entrypoint": "/opt/t 'a b'"}


def test_a_stage_begins_from_its_base_and_not_from_the_last_rehearsal(rehearsal, tmp_path):
    first = rehearsal("ARG BASE\nFROM ${BASE}\nCOPY LICENSE /LICENSE\n")
    assert (first.root / "LICENSE").exists()
    again = rehearsal("ARG BASE\nFROM ${BASE}\n")
    assert again.root == first.root and not (again.root / "LICENSE").exists()
    assert not (tmp_path / "base" / "LICENSE").exists()


def test_what_is_built_into_the_image_has_to_be_given(rehearsal, modules):
    _, dockerfile = modules
    with pytest.raises(dockerfile.DockerfileError, match="no value is given for ARG SECRET"):
        rehearsal("ARG BASE\nFROM ${BASE}\nARG SECRET\n")


def test_a_user_without_root_is_told_so(modules, monkeypatch):
    rehearse, _ = modules
    monkeypatch.setattr(rehearse.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(rehearse.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert "this is user 1000: run it as root" in rehearse.hindrance()
