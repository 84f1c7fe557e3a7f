"""Output for people: progress and tables in the terminal, the HTML report, figures for papers."""

from ..training.run import register_report
from .page import render_notebook, write_run

register_report(write=write_run, render=render_notebook)
