"""Reads the instructions of a Dockerfile, those that deploy/Dockerfile uses. Standard library only."""

import json
import re
import shlex
from typing import List, Mapping, NamedTuple

KEYWORDS = ("ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "ENTRYPOINT")


class DockerfileError(Exception):
    """An instruction that is not understood; its text has the line."""


class Instruction(NamedTuple):
    """An instruction: its first line's number, its keyword, and the rest as it stands, continued lines joined."""

    line: int
    keyword: str
    rest: str

    def words(self, variables: Mapping[str, str]) -> List[str]:
        """The words, with `${NAME}` filled in; of a JSON list its texts, as they stand.

        Args:
            variables: What may be filled in.

        Raises:
            DockerfileError: A variable is none of these.
        """
        if self.rest.startswith("["):
            return list(json.loads(self.rest))

        def value(found):
            if found[1] not in variables:
                raise DockerfileError(f"line {self.line}: there is no variable {found[1]}")
            return variables[found[1]]

        return [re.sub(r"\$\{(\w+)\}", value, word) for word in shlex.split(self.rest)]


def parse(text: str) -> List[Instruction]:
    """The instructions in order.

    Args:
        text: A Dockerfile.

    Raises:
        DockerfileError: An instruction is none of KEYWORDS: nothing is passed over.
    """
    found, pending, first = [], "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        # A comment may stand between continued lines too.
        if line.lstrip().startswith("#") or not line.strip():
            continue
        first = first if pending else number
        pending += line.strip()
        if pending.endswith("\\"):
            pending = pending[:-1].rstrip() + " "
            continue
        keyword, _, rest = pending.partition(" ")
        if keyword not in KEYWORDS:
            raise DockerfileError(f"line {first}: {keyword} is none of {', '.join(KEYWORDS)}")
        found.append(Instruction(first, keyword, rest.strip()))
        pending = ""
    if pending:
        raise DockerfileError(f"line {first}: the last instruction has no end")
    return found
