"""What deploy/terraform promises: only what the provider takes, the roles of the table and no others, private buckets that keep."""

import collections
import json
import pathlib
import re
import shutil
import subprocess

import hcl2
import pytest

from pipeline import settings, typed
from pipeline.places import Places
from tests.pipeline.vertex.conftest import filled

ROOT = pathlib.Path(__file__).resolve().parents[2]

FOLDER = ROOT / "deploy" / "terraform"

PROVIDER = json.loads((pathlib.Path(__file__).parent / "provider.json").read_text())

_META = {"for_each", "count", "depends_on", "lifecycle", "provider"}

API_OF = {
    "aiplatform_v1": "aiplatform", "bigquery": "bigquery", "pubsub_v1": "pubsub", "storage": "storage",
    "aiplatform_v1.services.vizier_service.transports": "aiplatform", "storage.retry": "storage",
}  # fmt: skip
"""Google's packages that the product imports -> the API that they speak to."""


@pytest.fixture(scope="module")
def terraform() -> dict:
    """All files as one: kind -> entries."""
    text = "\n".join(path.read_text() for path in sorted(FOLDER.glob("*.tf")))
    options = hcl2.SerializationOptions(with_comments=False, explicit_blocks=False, strip_string_quotes=True)
    return hcl2.loads(text, serialization_options=options)


@pytest.fixture(scope="module")
def resources(terraform) -> dict[str, dict[str, dict]]:
    """Type -> name -> arguments."""
    found = collections.defaultdict(dict)
    for entry in terraform["resource"]:
        for kind, named in entry.items():
            for name, body in named.items():
                assert name not in found[kind], f"{kind}.{name} is there twice"
                found[kind][name] = body
    return found


@pytest.fixture(scope="module")
def local(terraform) -> dict:
    return {name: value for block in terraform["locals"] for name, value in block.items()}


@pytest.fixture(scope="module")
def variables(terraform) -> dict[str, dict]:
    return {name: body for entry in terraform["variable"] for name, body in entry.items()}


def complaints(body: dict, known: dict, where: str) -> list[str]:
    """What a block has that the provider does not take, and what it lacks.

    Args:
        body: The block.
        known: Its arguments, as in provider.json.
        where: Its name.
    """
    found = [f"{where}: no argument {name}" for name in body.keys() - known.keys() - _META]
    for name, about in known.items():
        required, block = about if isinstance(about, list) else (about, None)
        # An id is computed, and is required nowhere but in the generated types of two resources' inner blocks.
        if required and name not in body and name != "id":
            found.append(f"{where}: {name} is required")
        if block is not None and name in body:
            inner = body[name]
            for number, each in enumerate(inner if isinstance(inner, list) else [inner]):
                found += complaints(each, block, f"{where}.{name}[{number}]") if isinstance(each, dict) else []
    return found


def test_every_argument_is_one_that_the_pinned_provider_takes(terraform, resources):
    pinned = terraform["terraform"][0]["required_providers"][0]["google"]
    assert pinned == {"source": "hashicorp/google", "version": PROVIDER["version"]}
    assert terraform["terraform"][0]["required_version"] == ">= 1.9, < 2.0"
    found = [
        line
        for kind, named in resources.items()
        for name, body in named.items()
        for line in complaints(body, PROVIDER["types"][kind], f"{kind}.{name}")
    ]
    found += complaints(terraform["provider"][0]["google"], PROVIDER["types"]["google_google_provider"], "provider")
    found += complaints(terraform["data"][0]["google_project"]["this"], PROVIDER["types"]["google_data_google_project"], "data")
    assert not found, "\n".join(found)


def test_a_wrong_argument_would_be_seen():
    bucket = {"name": "x", "versioning": [{"on": True}], "lifecycle_rule": [{"action": [{"type": "Delete"}], "condition": [{}]}]}
    assert sorted(complaints(bucket, PROVIDER["types"]["google_storage_bucket"], "b")) == [
        "b.versioning[0]: enabled is required", "b.versioning[0]: no argument on", "b: location is required",
    ]  # fmt: skip


def table_of_roles() -> set[tuple[str, str, str]]:
    """Who, on what, as what: the table of README.md."""
    text = (FOLDER / "README.md").read_text()
    section = text[text.index("## Who may do what") : text.index("## What is kept")]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| ")]
    assert rows[0] == ["who", "on", "role", "why"] and all(row[3] for row in rows)
    assert len({tuple(row[:3]) for row in rows[1:]}) == len(rows) - 1, "a row is there twice"
    return {tuple(row[:3]) for row in rows[1:]}


def granted(local) -> set[tuple[str, str, str]]:
    return {(who, scope, role) for who, scopes in local["grants"].items() for scope, roles in scopes.items() for role in roles}


def test_each_account_has_the_roles_of_the_table_and_no_others(local, resources):
    assert granted(local) == table_of_roles()
    assert set(local["members"]) == set(local["grants"])
    # Every resource that gives a role gives those of `grants`: there is no other way in.
    given = {
        (kind, name): body["for_each"] for kind, named in resources.items() for name, body in named.items()
        if kind.endswith(("_iam_member", "_iam_binding", "_iam_policy"))
    }  # fmt: skip
    scopes = {re.fullmatch(r'\$\{local\.given\["(\w+)"\]\}', each)[1] for each in given.values()}
    assert len(scopes) == len(given) and scopes == {scope for _, scope, _ in granted(local)}
    assert all(kind.endswith("_iam_member") for kind, _ in given), "a binding would take away what others were given"
    for (kind, name), _ in given.items():
        body = resources[kind][name]
        assert body["member"] == "${each.value.member}" and "each.value.role" in body["role"]


def test_nobody_has_a_role_that_may_all_and_nothing_is_for_everybody(local):
    too_much = re.compile(r"roles/(owner|editor|viewer)$|\.admin$|[aA]dmin$|roles/iam\.(serviceAccountTokenCreator|securityAdmin)")
    assert not [role for _, _, role in granted(local) if too_much.search(role)]
    text = "".join(path.read_text() for path in FOLDER.glob("*.tf"))
    assert not re.search("allUsers|allAuthenticatedUsers|google_service_account_key", text)


def test_roles_are_given_on_one_thing_where_there_is_one(local):
    """On the project only what has no smaller thing to be given on."""
    project = {(who, role) for who, scope, role in granted(local) if scope == "project"}
    assert not [role for _, role in project if role.startswith(("roles/storage.", "roles/pubsub.", "roles/iam.", "roles/artifactregistry."))]
    assert not [role for _, role in project if role in ("roles/bigquery.dataEditor", "roles/bigquery.dataViewer")]


def test_photographs_are_read_only_for_every_account(local):
    assert {role for _, scope, role in granted(local) if scope == "images"} == {"roles/storage.objectViewer"}


def test_an_auditor_can_change_nothing(local, resources):
    mine = {(scope, role) for who, scope, role in granted(local) if who == "auditors"}
    reading = {"roles/storage.objectViewer", "roles/bigquery.dataViewer"}
    # A job of BigQuery reads what its owner may read, and no more.
    assert {role for _, role in mine} == reading | {"roles/bigquery.jobUser", "retrainAuditor"}
    custom = resources["google_project_iam_custom_role"]["auditor"]
    assert custom["role_id"] == "retrainAuditor"
    assert not [each for each in custom["permissions"] if not re.fullmatch(r"aiplatform\.\w+\.(get|list|query\w+)", each)]
    read = {each.split(".")[1] for each in custom["permissions"]}
    assert {"artifacts", "executions", "contexts", "metadataStores", "pipelineJobs"} <= read


def test_buckets_are_private_and_keep_what_is_deleted(resources):
    for name in ("store", "images"):
        bucket = resources["google_storage_bucket"][name]
        assert bucket["uniform_bucket_level_access"] is True and bucket["public_access_prevention"] == "enforced"
        assert bucket["versioning"] == [{"enabled": True}] and bucket["force_destroy"] is False
        assert bucket["lifecycle"] == [{"prevent_destroy": True}] and bucket["soft_delete_policy"]
        # Only old versions and temporary files ever go by themselves.
        for rule in bucket["lifecycle_rule"]:
            (condition,) = rule["condition"]
            assert condition["with_state"] == "ARCHIVED" or condition["matches_prefix"] == ["${var.store_folder}/dataflow/"]
    dataset = resources["google_bigquery_dataset"]["labels"]
    assert dataset["delete_contents_on_destroy"] is False and dataset["max_time_travel_hours"] == "168"
    assert "default_table_expiration_ms" not in dataset


def test_no_version_of_what_auditors_ask_for_ever_goes(resources):
    rules = resources["google_storage_bucket"]["store"]["lifecycle_rule"]
    ends = set(re.findall(r'"(\w+)"(?=[,\]])', str(rules[0]["condition"][0]["matches_prefix"])))
    places = Places(store="gs://b/retrain")
    assert ends == {"artifacts", "checkpoints", "dataflow"}
    mortal = tuple(f"gs://b/retrain/{folder}/" for folder in ends)
    assert all(f"{each}/".startswith(mortal) for each in (places.artifacts, places.checkpoints))
    kept = (places.ledger, places.versions, places.accepted, places.all_reports, places.shards, places.quality, places.configurations)
    assert not [each for each in kept if f"{each}/".startswith(mortal)]


def test_the_serving_account_reads_released_models_alone(resources):
    (condition,) = resources["google_storage_bucket_iam_member"]["models"]["condition"]
    released = Places(store="STORE").versions.removeprefix("STORE/")
    assert condition["expression"].endswith(f'/objects/${{var.store_folder}}/{released}/")')


def test_a_tag_cannot_be_moved(resources):
    assert resources["google_artifact_registry_repository"]["images"]["docker_config"] == [{"immutable_tags": True}]


def test_dataflows_workers_reach_google_without_public_addresses(resources):
    assert resources["google_compute_subnetwork"]["dataflow"]["private_ip_google_access"] is True
    firewall = resources["google_compute_firewall"]["dataflow"]
    assert firewall["source_tags"] == firewall["target_tags"] == ["dataflow"] and "source_ranges" not in firewall


def test_every_api_that_the_code_speaks_to_is_enabled(local, resources):
    code = [path for folder in ("pipeline", "models") for path in (ROOT / folder).rglob("*.py")] + [*ROOT.glob("*.py")]
    imports = "\n".join(path.read_text() for path in code)
    used = set(re.findall(r"^\s*from google\.cloud import (\w+)", imports, re.M))
    used |= set(re.findall(r"^\s*from google\.cloud\.([\w.]+) import", imports, re.M))
    needed = {API_OF[package] for package in used}
    # By Beam: Dataflow on Compute Engine's machines, and BigQuery's Storage Read API.
    needed |= {"dataflow", "compute", "bigquerystorage", "artifactregistry"}
    by_kind = {
        "google_billing_budget": "billingbudgets", "google_monitoring": "monitoring", "google_logging": "logging",
        "google_service_account": "iam", "google_project_iam": "cloudresourcemanager", "google_pubsub": "pubsub",
        "google_compute": "compute", "google_storage": "storage", "google_bigquery": "bigquery",
        "google_artifact_registry": "artifactregistry", "google_project_service": "cloudresourcemanager",
    }  # fmt: skip
    for kind in resources:
        needed.add(next(api for prefix, api in by_kind.items() if kind.startswith(prefix)))
    assert {f"{api}.googleapis.com" for api in needed} == set(local["apis"])
    text = (FOLDER / "README.md").read_text()
    told = re.findall(r"[\w]+", " ".join(re.findall(r"^\| ([\w, ]+) \|", text[text.index("## APIs") :], re.M)[1:]))
    assert {f"{api}.googleapis.com" for api in told} == set(local["apis"])


def test_the_outputs_are_settings(local):
    """Its names are those of pipeline/configs/vertex.yaml, and the rest of it stands."""
    content = filled()
    values = {"project": "acme-products", "kind": "bigquery", "dataset": "labels", "labels": "labels", "region": "europe-west4",
              "store": "gs://acme/retrain", "images": "gs://acme-photographs/jpeg", "service_account": "a@b.iam.gserviceaccount.com",
              "alert_topic": "projects/acme-products/topics/retrain-alerts", "subnetwork": "regions/r/subnetworks/s"}  # fmt: skip
    given = local["settings"]
    assert given["vertex"].pop("labels") == {"team": "${var.team}"}
    content["warehouse"] |= {name: values[name] for name in given["warehouse"]}
    for name in given["vertex"].keys() - {"dataflow", "release"}:
        content["vertex"][name] = values[name]
    for part in ("dataflow", "release"):
        content["vertex"][part] |= {name: values[name] for name in given["vertex"][part]}
    typed.from_dict(settings.Settings, content, "terraform")


def test_the_settings_name_what_terraform_makes(local, resources):
    """Who fills in project and bucket alone has the accounts, the topic and the subnetwork that are made here."""
    vertex = filled()["vertex"]
    accounts = {who: f"{about['id']}@acme-products.iam.gserviceaccount.com" for who, about in local["accounts"].items()}
    named = vertex["service_account"], vertex["dataflow"]["service_account"], vertex["release"]["service_account"]
    assert named == (accounts["runner"], accounts["dataflow"], accounts["serving"])
    assert vertex["alert_topic"].endswith(f"/{resources['google_pubsub_topic']['alerts']['name']}")
    assert vertex["dataflow"]["subnetwork"].endswith(f"/{resources['google_compute_subnetwork']['dataflow']['name']}")


def test_alerts_and_budget_reach_people(resources):
    policies = resources["google_monitoring_alert_policy"]
    channels = "${[for channel in google_monitoring_notification_channel.email : channel.name]}"
    assert all(policy["notification_channels"] == channels for policy in policies.values())
    failed, silent = (policies[name]["conditions"][0] for name in ("failed", "silent"))
    assert 'jsonPayload.state="PIPELINE_STATE_FAILED"' in failed["condition_matched_log"][0]["filter"]
    assert "[8d]" in silent["condition_prometheus_query_language"][0]["query"]
    # The metric of the query is the one that is made here, as Monitoring writes it in PromQL.
    metric = resources["google_logging_metric"]["succeeded"]
    assert f"user_{metric['name'].replace('/', '_')}{{" in silent["condition_prometheus_query_language"][0]["query"]
    assert 'jsonPayload.state="PIPELINE_STATE_SUCCEEDED"' in metric["filter"]
    budget = resources["google_billing_budget"]["monthly"]
    assert {rule.get("spend_basis", "CURRENT_SPEND") for rule in budget["threshold_rules"]} == {"CURRENT_SPEND", "FORECASTED_SPEND"}
    assert "email" in budget["all_updates_rule"][0]["monitoring_notification_channels"]


def test_every_variable_says_what_it_is_and_is_checked(variables):
    for name, body in variables.items():
        assert body["description"] and body["type"], name
        (validation,) = body["validation"]
        assert f"var.{name}" in validation["condition"] and validation["error_message"].endswith("."), name
    example = dict(re.findall(r"^(\w+) *= *(.+)$", (FOLDER / "example.tfvars").read_text(), re.M))
    needed = {name for name, body in variables.items() if "default" not in body}
    assert needed <= example.keys() <= variables.keys()


needs_terraform = pytest.mark.skipif(not shutil.which("terraform"), reason="needs terraform, to ask it itself")


def run(*words: str, folder) -> subprocess.CompletedProcess:
    return subprocess.run(["terraform", *words], cwd=folder, capture_output=True, text=True, timeout=120)


@needs_terraform
def test_terraform_finds_nothing_to_format():
    done = run("fmt", "-check", "-recursive", folder=FOLDER)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A folder with the variables and who gets what, and nothing that needs the provider."""
    folder = tmp_path_factory.mktemp("terraform")
    shutil.copy(FOLDER / "variables.tf", folder)
    shutil.copy(FOLDER / "example.tfvars", folder / "retrain.auto.tfvars")
    accounts = (FOLDER / "accounts.tf").read_text()
    (folder / "accounts.tf").write_text(accounts[: accounts.index('\nresource "')] + 'output "given" {\n  value = local.given\n}\n')
    return folder


@needs_terraform
def test_terraform_itself_gives_each_member_each_role_on_each_thing(evaluated, local):
    done = run("apply", "-auto-approve", "-no-color", folder=evaluated)
    assert done.returncode == 0, done.stdout + done.stderr
    given = json.loads(run("output", "-json", "given", folder=evaluated).stdout)
    accounts = {who: f"serviceAccount:{about['id']}@your-project.iam.gserviceaccount.com" for who, about in local["accounts"].items()}
    people = {"submitters": "group:your-team@example.com", "builders": "group:your-team@example.com",
              "analysts": "group:your-analysts@example.com", "auditors": "group:your-auditors@example.com"}  # fmt: skip
    expected = {(scope, (accounts | people)[who], role) for who, scope, role in granted(local)}
    assert {(scope, each["member"], each["role"]) for scope, entries in given.items() for each in entries.values()} == expected


@needs_terraform
@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("auditors", '["allUsers"]', "nobody else may be let in"),
        ("alert_emails", "[]", "an alert that nobody reads is none"),
        ("store_bucket", "gs://x", "A bucket's name takes"),
        ("store_soft_delete_days", "0", "7 to 90 days"),
        ("region", "europe-west4-a", "not a zone"),
        ("billing_account", "x", "XXXXXX-XXXXXX-XXXXXX"),
    ],
)
def test_what_cannot_be_right_is_refused_before_anything_is_made(evaluated, variable, value, words):
    done = run("plan", "-no-color", f"-var={variable}={value}", folder=evaluated)
    assert done.returncode == 1 and words in " ".join(re.sub("[│╷╵]", " ", done.stderr).split())
