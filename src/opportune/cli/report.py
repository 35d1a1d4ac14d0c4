"""``opportune report``: runs in; one HTML file that compares them out."""

from __future__ import annotations

from collections.abc import Sequence

from opportune.cli.parser import Parser

EXAMPLES = """\
Examples:
  opportune report runs/uniform-0 runs/uniform-1 runs/adaptive-0 runs/adaptive-1
  opportune report comparison --output comparison.html
  opportune report runs/* --baseline "uniform + min_snr" --data"""


def main(words: Sequence[str]) -> int:
    """Run ``opportune report`` with these words; returns the exit code."""
    arguments = _parser().parse_args(words)
    from opportune.report.page import write_report

    report = write_report(
        arguments.runs,
        arguments.output,
        baseline=arguments.baseline,
        frechet=arguments.frechet,
        data=arguments.data,
    )
    for line in (*report.headlines, *report.notes):
        print(line)
    print(f"report: {report.path} ({report.bytes / 1e6:.1f} MB)")
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="opportune report",
        description="Compare runs in one HTML file that needs nothing else: steps and time to the baseline's quality, "
        "curves, images, densities, costs and configurations.",
        epilog=EXAMPLES,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folder, or folder of a comparison")
    parser.add_argument("--output", default="report.html", metavar="FILE", help="file to write (default: report.html)")
    parser.add_argument(
        "--baseline", metavar="LABEL", help="method the others are measured against (default: the plan's, or uniform)"
    )
    parser.add_argument(
        "--no-frechet", dest="frechet", action="store_false", help="leave Fréchet distances out, e.g. of unequal counts"
    )
    parser.add_argument(
        "--data", action="store_true", help="also write each figure as SVG, its numbers beside it, to <output>_data/"
    )
    return parser
