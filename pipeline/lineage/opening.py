"""Which lineage a command asks: the store's own SQLite file, a database beside it, or Vertex ML Metadata."""

import argparse

from pipeline import storage
from pipeline.errors import PipelineError, SettingsError
from pipeline.lineage.base import LineageStore
from pipeline.places import DEFAULT_STORE, Places


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes how a command line names the store and its lineage."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--store", metavar="DIR", help="where runs left their things (default: store)")
    where.add_argument("--settings", metavar="FILE", help="settings of runs on Vertex AI: their store, and Vertex ML Metadata")
    parser.add_argument(
        "--lineage",
        metavar="URL",
        help="ML Metadata in MySQL or MariaDB instead of the store's own file: mysql://USER@HOST[:PORT]/DATABASE[?ca=FILE]; "
        "the password in LINEAGE_PASSWORD, or in the file that LINEAGE_PASSWORD_FILE names",
    )


def places(options: argparse.Namespace) -> Places:
    """The store that a command line names.

    Raises:
        PipelineError: The settings cannot be used, or do not go with the rest of the command line.
    """
    if options.settings is None:
        return Places(store=options.store or DEFAULT_STORE)
    if options.lineage is not None:
        raise PipelineError("--settings and --lineage name two lineages: leave one of them out")
    return Places(store=_settings(options.settings).vertex.store)


def lineage(options: argparse.Namespace, known: Places) -> LineageStore:
    """Opens the lineage that a command line names, read-only.

    Args:
        options: The command line.
        known: The store that it names.

    Raises:
        PipelineError: It cannot be opened.
    """
    # What each needs is loaded for it alone: a file needs neither Google's client nor MySQL's.
    if options.settings is not None:
        from pipeline.lineage.vertex import VertexLineage

        settings = _settings(options.settings)
        return VertexLineage(settings.vertex, settings.name)
    if options.lineage is not None:
        from pipeline.lineage import mysql

        return mysql.MySQLLineage(options.lineage, mysql.password_of_environment())
    if storage.is_cloud(known.store):
        raise PipelineError(
            f"the store {known.store} is one of runs on Vertex AI, whose lineage is in Vertex ML Metadata: name their settings by "
            "--settings"
        )
    from pipeline.lineage.mlmd import MLMDLineage

    return MLMDLineage(known.metadata)


def _settings(path: str):
    from pipeline import settings

    found = settings.load(path)
    if found.vertex is None:
        raise SettingsError(f"{path} has no vertex: name the settings that the runs on Vertex AI have, or a store by --store")
    return found
