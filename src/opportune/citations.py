"""BibTeX of what was used: ``print(op.cite(sampler, weighting))``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from .checks import one_of
from .names import SAMPLERS, WEIGHTINGS, sampler_class, samplers, weighting_class, weightings
from .optim.mdlrc import Strategy
from .processes import DDPM, Process
from .samplers.base import Sampler
from .weightings.base import Weighting


@dataclass(frozen=True)
class Paper:
    """One entry; ``arxiv`` is the identifier, ``venue`` the proceedings (empty for a preprint), ``url`` of software."""

    authors: str
    title: str
    year: int
    venue: str = ""
    arxiv: str = ""
    url: str = ""

    @property
    def label(self) -> str:
        """As in running text: "Ho et al., 2020"."""
        surnames = [author.split(",")[0].strip("{}") for author in self.authors.split(" and ")]
        few = len(surnames) < 3 and surnames[-1] != "others"
        shown = " & ".join(surnames) if few else f"{surnames[0]} et al."
        return f"{shown}, {self.year}"

    @property
    def link(self) -> str:
        """Where to read it; empty if it is in no open archive."""
        return self.url or (f"https://arxiv.org/abs/{self.arxiv}" if self.arxiv else "")

    def bibtex(self, key: str) -> str:
        """The entry under ``key``."""
        kind = "inproceedings" if self.venue else "misc" if self.arxiv else "software"
        fields = {
            "author": self.authors,
            "title": f"{{{self.title}}}",
            "booktitle": self.venue,
            "year": str(self.year),
            "eprint": self.arxiv,
            "archiveprefix": "arXiv" if self.arxiv else "",
            "url": self.url,
        }
        body = ",\n".join(f"  {name} = {{{value}}}" for name, value in fields.items() if value)
        return f"@{kind}{{{key},\n{body}\n}}"


_NEURIPS, _ICLR, _ICML = (
    "Advances in Neural Information Processing Systems (NeurIPS)",
    "International Conference on Learning Representations (ICLR)",
    "International Conference on Machine Learning (ICML)",
)
_CVPR = "IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)"

PAPERS: dict[str, Paper] = {
    "opportune": Paper(
        "{The opportune authors}", "opportune: which timestep to train next", 2026
    ),
    "ho2020denoising": Paper(
        "Ho, Jonathan and Jain, Ajay and Abbeel, Pieter",
        "Denoising Diffusion Probabilistic Models", 2020, _NEURIPS, "2006.11239",
    ),
    "song2021score": Paper(
        "Song, Yang and Sohl-Dickstein, Jascha and Kingma, Diederik P. and Kumar, Abhishek and Ermon, Stefano and "
        "Poole, Ben",
        "Score-Based Generative Modeling through Stochastic Differential Equations", 2021, _ICLR, "2011.13456",
    ),
    "nichol2021improved": Paper(
        "Nichol, Alexander Quinn and Dhariwal, Prafulla",
        "Improved Denoising Diffusion Probabilistic Models", 2021, _ICML, "2102.09672",
    ),
    "kingma2021variational": Paper(
        "Kingma, Diederik P. and Salimans, Tim and Poole, Ben and Ho, Jonathan",
        "Variational Diffusion Models", 2021, _NEURIPS, "2107.00630",
    ),
    "rombach2022high": Paper(
        "Rombach, Robin and Blattmann, Andreas and Lorenz, Dominik and Esser, Patrick and Ommer, Bj{\\\"o}rn",
        "High-Resolution Image Synthesis with Latent Diffusion Models", 2022, _CVPR, "2112.10752",
    ),
    "salimans2022progressive": Paper(
        "Salimans, Tim and Ho, Jonathan",
        "Progressive Distillation for Fast Sampling of Diffusion Models", 2022, _ICLR, "2202.00512",
    ),
    "choi2022perception": Paper(
        "Choi, Jooyoung and Lee, Jungbeom and Shin, Chaehun and Kim, Sungwon and Kim, Hyunwoo and Yoon, Sungroh",
        "Perception Prioritized Training of Diffusion Models", 2022, _CVPR, "2204.00227",
    ),
    "karras2022elucidating": Paper(
        "Karras, Tero and Aittala, Miika and Aila, Timo and Laine, Samuli",
        "Elucidating the Design Space of Diffusion-Based Generative Models", 2022, _NEURIPS, "2206.00364",
    ),
    "crowson2022kdiffusion": Paper(
        "Crowson, Katherine", "k-diffusion", 2022, url="https://github.com/crowsonkb/k-diffusion"
    ),
    "chen2022demon": Paper(
        "Chen, John and Wolfe, Cameron and Li, Zhao and Kyrillidis, Anastasios",
        "Demon: Improved Neural Network Training with Momentum Decay", 2022,
        "IEEE International Conference on Acoustics, Speech and Signal Processing (ICASSP)", "1910.04952",
    ),
    "lipman2023flow": Paper(
        "Lipman, Yaron and Chen, Ricky T. Q. and Ben-Hamu, Heli and Nickel, Maximilian and Le, Matthew",
        "Flow Matching for Generative Modeling", 2023, _ICLR, "2210.02747",
    ),
    "hoogeboom2023simple": Paper(
        "Hoogeboom, Emiel and Heek, Jonathan and Salimans, Tim",
        "simple diffusion: End-to-end diffusion for high resolution images", 2023, _ICML, "2301.11093",
    ),
    "kingma2023understanding": Paper(
        "Kingma, Diederik P. and Gao, Ruiqi",
        "Understanding Diffusion Objectives as the {ELBO} with Simple Data Augmentation", 2023, _NEURIPS, "2303.00848",
    ),
    "hang2023efficient": Paper(
        "Hang, Tiankai and Gu, Shuyang and Li, Chen and Bao, Jianmin and Chen, Dong and Hu, Han and Geng, Xin and "
        "Guo, Baining",
        "Efficient Diffusion Training via {Min-SNR} Weighting Strategy", 2023,
        "IEEE/CVF International Conference on Computer Vision (ICCV)", "2303.09556",
    ),
    "yu2023debias": Paper(
        "Yu, Hu and Shen, Li and Huang, Jie and Li, Hongsheng and Zhao, Feng",
        "Unmasking Bias in Diffusion Model Training", 2023, arxiv="2310.08442",
    ),
    "lin2024common": Paper(
        "Lin, Shanchuan and Liu, Bingchen and Li, Jiashi and Yang, Xiao",
        "Common Diffusion Noise Schedules and Sample Steps are Flawed", 2024,
        "IEEE/CVF Winter Conference on Applications of Computer Vision (WACV)", "2305.08891",
    ),
    "karras2024analyzing": Paper(
        "Karras, Tero and Aittala, Miika and Lehtinen, Jaakko and Hellsten, Janne and Aila, Timo and Laine, Samuli",
        "Analyzing and Improving the Training Dynamics of Diffusion Models", 2024, _CVPR, "2312.02696",
    ),
    "crowson2024hourglass": Paper(
        "Crowson, Katherine and Baumann, Stefan Andreas and Birch, Alex and Abraham, Tanishq Mathew and Kaplan, "
        "Daniel Z. and Shippole, Enrico",
        "Scalable High-Resolution Pixel-Space Image Synthesis with Hourglass Diffusion Transformers", 2024, _ICML,
        "2401.11605",
    ),
    "esser2024scaling": Paper(
        "Esser, Patrick and Kulal, Sumith and Blattmann, Andreas and Entezari, Rahim and M{\\\"u}ller, Jonas and "
        "Saini, Harry and Levi, Yam and Lorenz, Dominik and Sauer, Axel and Boesel, Frederic and Podell, Dustin and "
        "Dockhorn, Tim and English, Zion and Lacey, Kyle and Goodwin, Alex and Marek, Yannik and Rombach, Robin",
        "Scaling Rectified Flow Transformers for High-Resolution Image Synthesis", 2024, _ICML, "2403.03206",
    ),
    "xu2024towards": Paper(
        "Xu, Tianshuo and Mi, Peng and Wang, Ruilin and Chen, Yingcong",
        "Towards Faster Training of Diffusion Models: An Inspiration of A Consistency Phenomenon", 2024,
        arxiv="2404.07946",
    ),
    "hang2024improved": Paper(
        "Hang, Tiankai and Gu, Shuyang and Geng, Xin and Guo, Baining",
        "Improved Noise Schedule for Diffusion Training", 2024, arxiv="2407.03297",
    ),
    "lee2024improving": Paper(
        "Lee, Sangyun and Lin, Zinan and Fanti, Giulia",
        "Improving the Training of Rectified Flows", 2024, _NEURIPS, "2405.20320",
    ),
    "black2024pi": Paper(
        "Black, Kevin and Brown, Noah and Driess, Danny and others",
        "$\\pi_0$: A Vision-Language-Action Flow Model for General Robot Control", 2024, arxiv="2410.24164",
    ),
    "zheng2024beta": Paper(
        "Zheng, Tianyi and others",
        "Beta-Tuned Timestep Diffusion Model", 2024, "European Conference on Computer Vision (ECCV)",
    ),
    "wang2025closer": Paper(
        "Wang, Kai and Shi, Mingjia and Zhou, Yukun and Li, Zekai and Yuan, Zhihang and Shang, Yuzhang and Peng, "
        "Xiaojiang and Zhang, Hanwang and You, Yang",
        "A Closer Look at Time Steps is Worthy of Triple Speed-Up for Diffusion Model Training", 2025, _CVPR,
        "2405.17403",
    ),
    "kim2025adaptive": Paper(
        "Kim, Myunsoo and Ki, Donghyeon and Shim, Seong-Woong and Lee, Byung-Jun",
        "Adaptive Non-Uniform Timestep Sampling for Accelerating Diffusion Model Training", 2025, _CVPR, "2411.09998",
    ),
    "raya2026noise": Paper(
        "Raya, Gabriel and Nguyen, Bac and Batzolis, Georgios and Takida, Yuhta and Stancevic, Dejan and Murata, Naoki "
        "and Lai, Chieh-Hsin and Mitsufuji, Yuki and Ambrogioni, Luca",
        "Noise Scheduling as Information-Guided Allocation in Diffusion Training", 2026, arxiv="2602.18647",
    ),
    "sun2026curriculum": Paper(
        "Sun, Pengwei",
        "Curriculum Sampling: A Two-Phase Curriculum for Efficient Training of Flow Matching", 2026, arxiv="2603.12517",
    ),
}  # fmt: skip

METHODS: dict[str, dict[str, str]] = {
    "sampler": {
        "uniform": "ho2020denoising", "log_normal": "karras2022elucidating", "logit_normal": "esser2024scaling",
        "mode": "esser2024scaling", "cosmap": "esser2024scaling", "beta": "zheng2024beta black2024pi",
        "laplace": "hang2024improved", "log_uniform": "song2021score", "log_logistic": "crowson2022kdiffusion",
        "cosine": "hoogeboom2023simple salimans2022progressive", "u_shaped": "lee2024improving", "within": "opportune",
        "table": "opportune", "speed": "wang2025closer", "clts": "xu2024towards",
        "curriculum": "sun2026curriculum", "stratified": "crowson2022kdiffusion",
        "low_discrepancy": "kingma2021variational", "mixture": "opportune", "phases": "opportune",
        "second_moment": "nichol2021improved", "kingma_gao": "kingma2023understanding", "info_noise": "raya2026noise",
        "gradient_variance": "kim2025adaptive", "kim": "kim2025adaptive", "adaptive": "opportune",
    },
    "weighting": {
        "constant": "ho2020denoising", "p2": "choi2022perception", "min_snr": "hang2023efficient",
        "soft_min_snr": "crowson2024hourglass", "debiased": "yu2023debias", "truncated_snr": "salimans2022progressive",
        "vlb": "ho2020denoising kingma2021variational", "edm": "karras2022elucidating", "speed": "wang2025closer",
        "sigma_sqrt": "esser2024scaling", "cosmap": "esser2024scaling", "learned_uncertainty": "karras2024analyzing",
    },
    "process": {
        "ddpm": "ho2020denoising", "vp": "song2021score", "ve": "song2021score", "edm": "karras2022elucidating",
        "flow": "lipman2023flow",
    },
    "strategy": {"mdlrc": "xu2024towards chen2022demon", "equal_decay": "opportune"},
    "library": {"opportune": "opportune"},
}  # fmt: skip
"""What each of our own names cites, by kind; several papers are separated by spaces."""

_SCHEDULES = {"cosine": "nichol2021improved", "scaled_linear": "rombach2022high"}
_CLASSES = {  # kind -> class name -> name
    "sampler": {path.partition(":")[2]: name for name, path in SAMPLERS.items()},
    "weighting": {path.partition(":")[2]: name for name, path in WEIGHTINGS.items()},
    "process": {"DDPM": "ddpm", "VP": "vp", "VE": "ve", "EDM": "edm", "Flow": "flow"},
    "strategy": {"MDLRC": "mdlrc", "EqualDecay": "equal_decay"},
}
_KINDS: dict[str, type] = {
    "sampler": Sampler, "weighting": Weighting, "process": Process, "strategy": Strategy,
}  # fmt: skip


def cite(*things: Any) -> str:
    """BibTeX of samplers, weightings, processes and optimizer strategies, each paper once; without any, of opportune.

    Args:
        *things: objects (wrappers cite what they wrap too), classes, or names; a name that stands for two methods, as
            "speed" for a sampler and a weighting, cites both. An outside package's class says what it cites in a class
            attribute ``bibtex``.
    """
    entries: dict[str, None] = {}
    for thing in things or ("opportune",):
        for entry in _entries(thing):
            entries[entry] = None
    return "\n\n".join(entries)


def _entries(thing: Any) -> Iterator[str]:
    if isinstance(thing, str):
        yield from _by_name(thing)
    elif isinstance(thing, nn.Module) and isinstance(thing, (Sampler, Weighting)):
        for part in thing.modules():
            if isinstance(part, (Sampler, Weighting)):
                yield from _by_class(type(part))
    elif isinstance(thing, type):
        yield from _by_class(thing)
    else:
        yield from _by_class(type(thing))
        if isinstance(thing, DDPM):
            yield from _by_schedule(thing)


def _by_schedule(process: DDPM) -> Iterator[str]:
    if process.schedule in _SCHEDULES:
        yield _bibtex(_SCHEDULES[process.schedule])
    if float(process.alphas_cumprod[-1]) == 0:
        yield _bibtex("lin2024common")


def _by_name(name: str) -> Iterator[str]:
    known = {known for names in METHODS.values() for known in names} | {*samplers(), *weightings()}
    key = one_of("thing to cite", name.replace("-", "_").lower(), known)
    cited = [paper for names in METHODS.values() if key in names for paper in names[key].split()]
    yield from map(_bibtex, cited)
    if not cited:  # a method of an outside package
        yield from _by_class(sampler_class(key) if key in samplers() else weighting_class(key))


def _by_class(cls: type) -> Iterator[str]:
    """What a class cites: its own ``bibtex``, or what the nearest of our classes it descends from cites."""
    for owner in cls.__mro__:
        if "bibtex" in owner.__dict__:
            yield str(owner.__dict__["bibtex"]).strip()
            return
        for kind, base in _KINDS.items():
            name = _CLASSES[kind].get(owner.__name__)
            if name is not None and issubclass(owner, base) and owner.__module__.startswith(f"{__package__}."):
                yield from map(_bibtex, METHODS[kind][name].split())
                return
    known = ", ".join(sorted({name for names in METHODS.values() for name in names}))
    raise ValueError(
        f"{cls.__name__} has no citation: give a sampler, weighting, process or optimizer strategy, or a name. "
        f"A class of your own says what it cites in a class attribute 'bibtex'. Known names: {known}."
    )


def _bibtex(key: str) -> str:
    return PAPERS[key].bibtex(key)
