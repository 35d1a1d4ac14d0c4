"""The generated table says what the classes say."""

import pytest
from scripts import make_methods_table as script

from opportune.names import SAMPLERS, WEIGHTINGS, sampler_class


def test_pages_are_up_to_date() -> None:
    stale = [path.name for path in script.stale()]
    assert not stale, "run python scripts/make_methods_table.py"


def test_every_method_has_a_row_with_a_file_that_exists() -> None:
    text = script.tables("")
    for name in (*SAMPLERS, *WEIGHTINGS):
        assert f"| `{name}` |" in text
    for row in script.samplers("")[1:] + script.weightings("")[1:] + script.strategies("")[1:]:
        path = row[2].split("](")[1].rstrip(")")
        assert (script.ROOT / path).is_file()


def test_rows_follow_the_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row[0].strip("`"): row for row in script.samplers("")[1:]}
    assert rows["kim"][3] == "`probe`" and rows["second_moment"][4] == "kept"
    assert rows["stratified"][3:] == ["as within"] * 3
    assert rows["curriculum"][3:] == ["nothing", "re-targeted", "0"]
    assert rows["log_normal"][3:] == ["nothing", "re-targeted", "0"]
    cls = sampler_class("log_normal")
    monkeypatch.setattr(cls, "unbiased_by_default", True)
    monkeypatch.setattr(cls, "needs", "losses")
    changed = {row[0].strip("`"): row for row in script.samplers("")[1:]}["log_normal"]
    assert changed[3:] == ["`losses`", "kept", "0: reads the step's own losses"]


def test_only_what_is_between_the_markers_is_replaced() -> None:
    text = f"above\n{script.START}\nold\n{script.END}\nbelow\n"
    made = script.between_markers(text, "new")
    assert made == f"above\n{script.START}\nnew\n{script.END}\nbelow\n"
    assert script.between_markers(made, "new") == made
    with pytest.raises(SystemExit, match="methods"):
        script.between_markers("no markers", "new")
