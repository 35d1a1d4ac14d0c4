"""Every name has its papers, and op.cite finds them from objects, classes and names."""

import re

import pytest
import torch

import opportune as op
from opportune.citations import METHODS, PAPERS
from opportune.names import SAMPLERS, WEIGHTINGS, weighting_class
from opportune.weightings import Weighting

OWN = {"table", "mixture", "within", "phases", "adaptive"}


def keys(text: str) -> list[str]:
    return re.findall(r"^@\w+\{(\w+),$", text, flags=re.M)


def test_every_name_of_ours_is_cited_and_no_other() -> None:
    assert set(METHODS["sampler"]) == set(SAMPLERS)
    assert set(METHODS["weighting"]) == set(WEIGHTINGS)
    for names in METHODS.values():
        for cited in names.values():
            assert set(cited.split()) <= set(PAPERS)
    own = {name for name, cited in METHODS["sampler"].items() if cited == "opportune"}
    assert own == OWN, "only what has no paper may cite the library itself"


def test_every_paper_is_cited_by_something() -> None:
    used = {key for names in METHODS.values() for cited in names.values() for key in cited.split()}
    used |= set(keys(op.cite(op.DDPM("cosine", zero_terminal_snr=True), op.DDPM("scaled_linear"))))
    assert used == set(PAPERS)


def test_entries_are_well_formed_and_distinct() -> None:
    for key, paper in PAPERS.items():
        entry = paper.bibtex(key)
        assert entry.count("{") == entry.count("}") and entry.isascii()
        assert (2020 <= paper.year <= 2026 and str(paper.year) in key) or key == "opportune"
        assert re.fullmatch(r"(\d{4}\.\d{5})?", paper.arxiv)
        surname = re.sub(r"[^a-z]", "", paper.authors.split(",")[0].lower())
        assert key.startswith(surname) or key == "opportune"
        assert paper.arxiv or paper.venue or paper.link or key == "opportune"
        if paper.arxiv and not paper.venue:
            assert entry.startswith("@misc")
    for field in ("title", "arxiv"):
        values = [getattr(p, field) for p in PAPERS.values() if getattr(p, field)]
        assert len(values) == len(set(values))


def test_known_entries() -> None:
    text = op.cite("kim", "min_snr")
    assert keys(text) == ["kim2025adaptive", "hang2023efficient"]
    assert "eprint = {2411.09998}" in text and "Kim, Myunsoo and Ki, Donghyeon" in text
    assert PAPERS["kingma2023understanding"].label == "Kingma & Gao, 2023"
    assert PAPERS["ho2020denoising"].label == "Ho et al., 2020"
    assert PAPERS["sun2026curriculum"].label == "Sun, 2026"


def test_objects_classes_and_names_agree() -> None:
    process = op.Flow()
    for name in op.weightings():
        if name in WEIGHTINGS:
            by_object, by_class = op.cite(op.weighting(name, process)), op.cite(weighting_class(name))
            assert keys(by_class) == METHODS["weighting"][name].split()
            assert set(keys(by_class)) <= set(keys(by_object))
    assert keys(op.cite(op.sampler("log_normal", process))) == ["karras2022elucidating"]
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])
    assert keys(op.cite(op.MDLRC(optimizer, total_steps=3))) == keys(op.cite("mdlrc")) == keys(op.cite(op.MDLRC))
    assert keys(op.cite("equal-decay")) == ["opportune"]
    for made, name in [(op.DDPM(), "ddpm"), (op.VP(), "vp"), (op.VE(), "ve"), (op.Flow(), "flow")]:
        assert op.cite(made) == op.cite(name)


def test_each_paper_once_and_in_order() -> None:
    process = op.EDM()
    text = op.cite(op.weighting("edm", process), process, "log-normal", op.weighting("p2", process))
    assert keys(text) == ["karras2022elucidating", "choi2022perception"]
    assert keys(op.cite()) == ["opportune"]


def test_a_wrapper_cites_what_it_wraps() -> None:
    made = op.sampler("stratified", op.DDPM("linear"), of="log_normal")
    assert set(keys(op.cite(made))) == {"crowson2022kdiffusion", "karras2022elucidating"}


def test_schedules_have_papers() -> None:
    assert keys(op.cite(op.DDPM("cosine"))) == ["ho2020denoising", "nichol2021improved"]
    assert keys(op.cite(op.DDPM("linear", zero_terminal_snr=True))) == ["ho2020denoising", "lin2024common"]


def test_outside_classes() -> None:
    class Mine(Weighting):
        bibtex = "@misc{me2026mine,\n}"

        def log_weight(self, u, log_snr):
            return log_snr

    class Nameless(Weighting):
        def log_weight(self, u, log_snr):
            return log_snr

    class Variant(weighting_class("min_snr")):
        pass

    assert keys(op.cite(Mine(op.Flow()))) == ["me2026mine"]
    assert keys(op.cite(Variant(op.Flow()))) == ["hang2023efficient"]
    with pytest.raises(ValueError, match=r"Nameless has no citation.*'bibtex'.*min_snr"):
        op.cite(Nameless(op.Flow()))


def test_unknown_things() -> None:
    with pytest.raises(ValueError, match=r"'min_snrr' is unknown; did you mean 'min_snr'\?.* Known: .*kim"):
        op.cite("min_snrr")
    with pytest.raises(ValueError, match=r"int has no citation"):
        op.cite(7)
