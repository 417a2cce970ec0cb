"""The HTML report: one self-contained page of the ladder, what it changes rung by rung, and what was measured.

    facts = gather(results_folder)
    write(check_output("ladder.html"), page(facts))

Nothing here imports a kernel language: rungs are read from their files, figures from kept result files.
"""

from tensorladder.report.facts import Facts, RungFacts, gather
from tensorladder.report.page import check_output, page, write
from tensorladder.report.results import Results

__all__ = ["Facts", "Results", "RungFacts", "check_output", "gather", "page", "write"]
