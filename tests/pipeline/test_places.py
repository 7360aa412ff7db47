"""Everything that runs leave behind lies in one folder, each thing at a place of its own."""

import pathlib

from pipeline.places import Places


def test_every_place_is_in_the_store_and_no_two_share_one():
    places = Places(store="/somewhere/store", images="/data/images")
    properties = [name for name, value in vars(Places).items() if isinstance(value, property)]
    found = [getattr(places, name) for name in properties] + [places.reports("run-1"), places.log("run-1")]
    assert len(found) == 18 == len(set(found))
    assert all(pathlib.Path(path).is_relative_to("/somewhere/store") for path in found)
    assert places.images == "/data/images"


def test_each_run_has_its_own_reports_and_its_own_log():
    places = Places(store="s")
    assert places.reports("a") != places.reports("b") and places.log("a") != places.log("b")
    assert (places.reports("a"), places.log("a")) == ("s/reports/a", "s/logs/a.log")
