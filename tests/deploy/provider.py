"""Writes provider.json: what Terraform's google provider takes, of the resources that deploy/terraform has.

    python tests/deploy/provider.py cdktn_provider_google-21.1.0-py3-none-any.whl > tests/deploy/provider.json

The provider itself is a program that tests cannot download. The package cdktn-provider-google is made from its schema, and says
in its description of which version; `pip download --no-deps` fetches it.
"""

import io
import json
import pathlib
import re
import sys
import tarfile
import zipfile

_META = {"connection", "count", "dependsOn", "forEach", "lifecycle", "provider", "provisioners"}


def main(wheel: str) -> None:
    """Prints the JSON."""
    archive = zipfile.ZipFile(wheel)
    about = next(archive.read(name).decode() for name in archive.namelist() if name.endswith("METADATA"))
    inner = next(name for name in archive.namelist() if name.endswith(".jsii.tgz"))
    with tarfile.open(fileobj=io.BytesIO(archive.read(inner))) as tar:
        types = json.load(tar.extractfile("package/.jsii"))["types"]
    sources = "\n".join(path.read_text() for path in (pathlib.Path(__file__).parents[2] / "deploy" / "terraform").glob("*.tf"))
    wanted = {name for _, name in re.findall(r'^(resource) "(\w+)"', sources, re.M)}
    wanted |= {f"google_data_{name}" for name in re.findall(r'^data "(\w+)"', sources, re.M)} | {"google_google_provider"}
    found = {}
    for name in types:
        of = re.fullmatch(r"@cdktn/provider-google\.(\w+)\.(\w+)Config", name)
        if of and of[1].lower() in (of[2].lower(), "provider") and f"google_{_snake(of[2])}" in wanted:
            found[f"google_{_snake(of[2])}"] = _fields(types, name)
    version = re.search(r"google provider version ([\d.]+)", about)[1]
    print(json.dumps({"version": version, "types": found}, indent=1, sort_keys=True))


def _fields(types: dict, name: str) -> dict:
    """Argument -> whether it must be given, or, of a block, [that, its arguments]."""
    found = {}
    for each in types[name].get("properties", []):
        if each["name"] in _META or each["name"] == "timeouts" or each["name"].endswith("CustomEndpoint"):
            continue
        required, block = not each.get("optional", False), _interface(types, each["type"])
        found[_snake(each["name"])] = [required, _fields(types, block)] if block else required
    return found


def _interface(types: dict, of: dict) -> str | None:
    if "fqn" in of:
        is_one = of["fqn"].startswith("@cdktn/provider-google") and types.get(of["fqn"], {}).get("kind") == "interface"
        return of["fqn"] if is_one else None
    if "collection" in of:
        return _interface(types, of["collection"]["elementtype"])
    return next(filter(None, (_interface(types, each) for each in of.get("union", {}).get("types", []))), None)


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()


if __name__ == "__main__":
    main(sys.argv[1])
