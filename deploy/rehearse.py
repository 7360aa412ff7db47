"""Rehearses deploy/Dockerfile without a container engine: its own steps, in a Debian 13 of their own (`make image-rehearsal`).

    python3 deploy/rehearse.py

What is rehearsed is the file itself, for the commit that is checked out: every instruction is carried out or stops the
rehearsal. Each stage is a folder, a RUN a shell in it. Then the image's user tries what runs in the image: kubeflow_runner.py
compiles, a step runs by the command that was compiled, a replica of a training job and a worker of Dataflow start.

Two things stand in. A Debian 13 of debootstrap for BASE: it has the glibc, and no CUDA. An empty folder for BEAM's image: what
Dataflow starts (the entry point, /opt/apache/beam/boot) is not run.

Needs root (for chroot and mounts, which end with the process), debootstrap, git, 10 GB of disk in .image-rehearsal/, and the
network. Standard library only. Exit status: 0 it works; 1 something a person can mend, or the image does not work.
"""

import hashlib
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Dict, List, NamedTuple, Optional

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "deploy"), str(ROOT / "requirements")]

import bootstrap  # noqa: E402
import current  # noqa: E402
import dockerfile  # noqa: E402
import image  # noqa: E402

FOLDER = ROOT / ".image-rehearsal"
DISK_NEEDED_GB = 10.0  # measured: 8.6 GB, two stages with the environment and uv's cache of one

_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_OUTSIDE = "/rehearsal/ca-certificates.crt"  # this machine's, a company's own authority among them

IMAGE = f"example.pkg.dev/rehearsal/retrain/pipeline@sha256:{'0' * 64}"
"""What the pipeline is told that it runs in: nothing was pushed, so nothing has a digest."""

_BLANKS = {
    "your-project": "rehearsal", "your-bucket": "rehearsal", "your-photographs": "rehearsal", "your-team": "rehearsal",
    "your-digest": "0" * 64,
}  # fmt: skip

# Runs in the image: fills in what Vertex fills in, and starts the first step by the command that was compiled.
FIRST_STEP = """
import json, pathlib, subprocess, sys
job = json.loads(pathlib.Path(sys.argv[1]).read_text())
spec, folder = job["pipelineSpec"], pathlib.Path(sys.argv[2])
task = spec["components"]["tfx-dag"]["dag"]["tasks"]["RunManifest"]
given = {"{{$.pipeline_job_name}}": "rehearsal-1", "{{$.pipeline_job_create_time_utc}}": "2026-03-02T20:00:07Z",
         "{{$.pipeline_job_schedule_time_utc}}": "2026-03-02T20:00:00Z",
         "snapshot_date": "scheduled", "override": "", "window_end": ""}
values = {}
for name, value in task["inputs"]["parameters"].items():
    constant = value.get("runtimeValue", {}).get("constant")
    values[name] = given[value["componentInputParameter"]] if constant is None else given.get(constant, constant)
schema = spec["components"]["RunManifest"]["outputDefinitions"]["artifacts"]["manifest"]["artifactType"]
filled = json.dumps({"inputs": {"parameterValues": values}, "outputs": {
    "artifacts": {"manifest": {"artifacts": [{"name": "1", "type": schema, "uri": str(folder / "manifest")}]}},
    "outputFile": str(folder / "task" / "executor_output.json")}})
container = spec["deploymentSpec"]["executors"]["RunManifest_executor"]["container"]
words = [filled if word == "{{$}}" else word for word in container["command"] + container["args"]]
subprocess.run(words, cwd="/", check=True)
print((folder / "manifest" / "manifest.json").read_text())
"""


class Stage(NamedTuple):
    """A stage of the build.

    Attributes:
        name: Its name, or its number.
        root: The folder that is its file system.
        variables: ARG and ENV, as later instructions see them.
        environment: ENV alone, which what runs in the image has.
        state: `workdir`, `user` and `entrypoint`.
    """

    name: str
    root: pathlib.Path
    variables: Dict[str, str]
    environment: Dict[str, str]
    state: Dict[str, str]

    def inside(self, path: str) -> pathlib.Path:
        """Where a path of the stage lies here; a relative one is of its WORKDIR."""
        return self.root / os.path.normpath(os.path.join(self.state["workdir"], path)).lstrip("/")


class Rehearsal:
    """Carries out a Dockerfile.

    Args:
        context: The folder that is built from.
        arguments: Values of ARG; BASE and BEAM name what stands in.
        stand_ins: The folder that stands in for each image.
    """

    def __init__(self, context: pathlib.Path, arguments: Dict[str, str], stand_ins: Dict[str, pathlib.Path]):
        self._context, self._arguments, self._stand_ins = context, arguments, stand_ins
        self._global: Dict[str, str] = {}
        self.stages: List[Stage] = []
        self.runs: List[float] = []

    def carry_out(self, instructions: List[dockerfile.Instruction]) -> Stage:
        """Does them in order; returns the last stage. Raises SetupError, DockerfileError."""
        for each in instructions:
            print(f"line {each.line}: {each.keyword} {each.rest}"[:150], flush=True)
            if each.keyword != "FROM" and not self.stages:
                if each.keyword != "ARG":
                    raise dockerfile.DockerfileError(f"line {each.line}: {each.keyword} before FROM")
                self._global[each.rest] = self._argument(each)
                continue
            getattr(self, f"_{each.keyword.lower()}")(each)
        return self.stages[-1]

    def _argument(self, each: dockerfile.Instruction) -> str:
        if each.rest not in self._arguments:
            raise dockerfile.DockerfileError(f"line {each.line}: no value is given for ARG {each.rest}")
        return self._arguments[each.rest]

    def _from(self, each):
        source, *name = each.words(self._global)
        stage = Stage(name[1] if name else str(len(self.stages)), FOLDER / f"stage-{len(self.stages)}", {}, {}, {"workdir": "/"})
        # A stage that another run left, of which nothing is to be taken over.
        if stage.root.exists():
            shutil.rmtree(stage.root)
        subprocess.run(["cp", "-a", "--reflink=auto", str(self._stand_ins[source]), str(stage.root)], check=True)
        stage.environment["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        stage.variables.update(stage.environment)
        self.stages.append(stage)

    def _arg(self, each):
        self.stages[-1].variables[each.rest] = self._argument(each)

    def _env(self, each):
        stage = self.stages[-1]
        for word in each.words(stage.variables):
            name, equals, value = word.partition("=")
            if not equals:
                raise dockerfile.DockerfileError(f"line {each.line}: write {name}=VALUE")
            stage.environment[name] = stage.variables[name] = value

    def _workdir(self, each):
        stage = self.stages[-1]
        stage.state["workdir"] = each.words(stage.variables)[0]
        stage.inside(".").mkdir(parents=True, exist_ok=True)

    def _user(self, each):
        self.stages[-1].state["user"] = each.words(self.stages[-1].variables)[0]

    def _entrypoint(self, each):
        self.stages[-1].state["entrypoint"] = shlex.join(each.words({}))

    def _copy(self, each):
        stage = self.stages[-1]
        *sources, target = each.words(stage.variables)
        of = None
        if sources[0].startswith("--from="):
            name = sources.pop(0).partition("=")[2]
            of = next(other for other in self.stages if other.name == name)
        for source in sources:
            here = of.inside(source) if of else self._context / source
            there = stage.inside(target)
            if here.is_dir():
                there.mkdir(parents=True, exist_ok=True)
                subprocess.run(["cp", "-a", f"{here}/.", str(there)], check=True)
            else:
                # The trailing slash or dot says that it is a folder.
                there = there / here.name if target.endswith(("/", ".")) else there
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(here, there)

    def _run(self, each):
        began = time.monotonic()
        # Where packages come from is of this machine, as an engine's build arguments are; TFX_LINE is the Dockerfile's to say.
        outside = {name: value for name, value in current.environment(os.environ).items() if name != "TFX_LINE"}
        stage = self.stages[-1]
        for name in ("PIP_CERT", "SSL_CERT_FILE"):
            outside.pop(name)
            if (stage.root / _OUTSIDE[1:]).exists():
                outside[name] = _OUTSIDE
        outside["DEBIAN_FRONTEND"] = "noninteractive"
        done = inside(stage, ["sh", "-c", each.rest], {**outside, **stage.variables})
        if done.returncode:
            raise bootstrap.SetupError(
                f"deploy/Dockerfile, line {each.line}, ended with exit status {done.returncode}:\n{bootstrap.indented(done.stdout, 30)}"
            )
        self.runs.append(time.monotonic() - began)


def inside(stage: Stage, command: List[str], environment: Dict[str, str], workdir: str = "") -> "subprocess.CompletedProcess[str]":
    """Runs a command in a stage as its USER; what it wrote is kept."""
    user = stage.state.get("user")
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
    words = ["env", "-C", workdir or stage.state["workdir"], *become, *command]
    return subprocess.run(
        current.in_debian(*words, root=stage.root), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, encoding="utf-8", errors="replace", check=False,
    )  # fmt: skip


def base() -> pathlib.Path:
    """A Debian 13 that stands in for BASE: nothing in it but what debootstrap's least has. Raises SetupError."""
    root = FOLDER / "base"
    FOLDER.mkdir(exist_ok=True)
    current.make_debian(root, packages="")
    for file, there in (("/etc/resolv.conf",) * 2, ("/etc/hosts",) * 2, (_CERTIFICATES, _OUTSIDE)):
        if os.path.exists(file):
            (root / there[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, root / there[1:])
    return root


def beam() -> pathlib.Path:
    """What stands in for BEAM: the folder that is copied, empty."""
    root = FOLDER / "beam"
    (root / "opt" / "apache" / "beam").mkdir(parents=True, exist_ok=True)
    return root


def try_out(stage: Stage, commit: str, context: pathlib.Path) -> Dict[str, str]:
    """Tries the image as its own user; returns what it says of itself.

    Raises:
        SetupError: Something does not work; the text has what was run and what it wrote.
    """
    folder = f"/home/{stage.state['user']}"
    environment = {**stage.environment, "HOME": folder, "LANG": "C.UTF-8", "TF_CPP_MIN_LOG_LEVEL": "3"}

    def run(*command: str, workdir: str = "") -> str:
        began = time.monotonic()
        done = inside(stage, list(command), environment, workdir)
        words = shlex.join(command)
        words = f"{words[:90]}..." if len(words) > 90 else words
        if done.returncode:
            raise bootstrap.SetupError(
                f"in the image, {words} ended with exit status {done.returncode}:\n{bootstrap.indented(done.stdout, 30)}"
            )
        print(f"in the image: {' '.join(words.split())} ({time.monotonic() - began:.0f} s)", flush=True)
        return done.stdout

    user = run("id", "-u").strip()
    if user == "0":
        raise bootstrap.SetupError("the image runs as root: deploy/Dockerfile names no USER")
    run("sh", "-c", "for file in /app/x /app/.venv/x /usr/x; do if touch $file 2>/dev/null; then exit 1; fi; done")
    settings = (context / "pipeline" / "configs" / "vertex.yaml").read_text(encoding="utf-8")
    for blank, value in _BLANKS.items():
        settings = settings.replace(blank, value)
    run("sh", "-c", f"printf %s {shlex.quote(settings)} > {folder}/settings.yaml")
    job = f"{folder}/weekly.json"
    run("python", "kubeflow_runner.py", "compile", "--settings", f"{folder}/settings.yaml", "--image", IMAGE, "--output", job)
    # Vertex and Dataflow start everything from a folder of their own.
    said = run("python", "-c", FIRST_STEP, job, folder, workdir="/")
    manifest = json.loads(said[said.rindex("\n{") if "\n{" in said else 0 :])
    lock = context / "requirements" / "tfx-1.21.txt"
    wanted = {
        "commit": commit, "tree": "clean", "lock": lock.name, "image": IMAGE,
        "lock_sha256": hashlib.sha256(lock.read_bytes()).hexdigest(),
    }  # fmt: skip
    differs = {name: (manifest.get(name), value) for name, value in wanted.items() if manifest.get(name) != value}
    if differs:
        raise bootstrap.SetupError(f"the run's record says otherwise than the image: {differs}")
    run("python", "-m", "tfx.scripts.run_executor", "--help", workdir="/")
    run("python", "-c", "import models.training, models.tuning, pipeline.tuning.worker", workdir="/")
    version = run("python", "-c", "import apache_beam, pipeline.shards.sharder; print(apache_beam.__version__)", workdir="/")
    return {"user": user, "python": manifest["python"], "beam": version.split()[-1]}


def rehearse() -> str:
    """Does it all; returns the line for the docs. Raises BuildError, SetupError, DockerfileError."""
    commit = image.committed()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="image-") as context:
        image.export(commit, context)
        instructions = dockerfile.parse((pathlib.Path(context) / "deploy" / "Dockerfile").read_text(encoding="utf-8"))
        arguments = {"BASE": "BASE", "BEAM": "BEAM", "COMMIT": commit}
        rehearsal = Rehearsal(pathlib.Path(context), arguments, {"BASE": base(), "BEAM": beam()})
        stage = rehearsal.carry_out(instructions)
        known = try_out(stage, commit, pathlib.Path(context))
    size = int(subprocess.run(["du", "-sk", str(stage.root)], stdout=subprocess.PIPE, check=True).stdout.split()[0])
    own = int(subprocess.run(["du", "-sk", str(FOLDER / "base")], stdout=subprocess.PIPE, check=True).stdout.split()[0])
    for other in rehearsal.stages[:-1]:
        shutil.rmtree(other.root)
    debian = (stage.root / "etc" / "debian_version").read_text(encoding="utf-8").strip()
    runs = " + ".join(f"{seconds:.0f}" for seconds in rehearsal.runs)
    return (
        f"commit {commit[:12]} on Debian {debian}, Python {known['python']}, Beam {known['beam']}, user {known['user']}: "
        f"RUN {runs} s, all {time.monotonic() - began:.0f} s; {(size - own) / 1e6:.1f} GB above the base"
    )


def hindrance() -> Optional[str]:
    """What hinders a rehearsal, with the remedy; None when nothing does."""
    tools = {name: shutil.which(name) for name in ("debootstrap", "git", "setpriv", "unshare", "chroot")}
    told = current.complaint(os.geteuid(), tools, float("inf"), (FOLDER / "base" / current.STAMP.name).exists())
    free = shutil.disk_usage(ROOT).free / 1e9
    if not told and free < DISK_NEEDED_GB:
        return f"too little disk: {ROOT} has {free:.1f} GB free, and {DISK_NEEDED_GB:.0f} GB are needed. Make room."
    return told


def main() -> int:
    """Rehearses; returns the exit status."""
    try:
        told = hindrance()
        if told:
            raise bootstrap.SetupError(told)
        print(rehearse())
    except (image.BuildError, bootstrap.SetupError, dockerfile.DockerfileError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
