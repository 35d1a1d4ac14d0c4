"""Runs read back from their folders, compared, and shown as one HTML file that needs nothing else."""

from .page import Report, write_report
from .runs import Evaluation, Run, read_run, read_runs

__all__ = ["Evaluation", "Report", "Run", "read_run", "read_runs", "write_report"]
