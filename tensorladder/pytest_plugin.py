"""`pytest --vgpu sm_100a`: a kernel library's GPU tests on the virtual GPU, unmodified, on a machine with no GPU.

Before a conftest or test module is imported, the process gets the virtual GPU for its CUDA device, as a script has it
under `tensorladder exec`. A test that needs something which is not modelled ends as *incomplete*: it never counts as
passed, whatever it made of the error. The summary says how many tests ran and launched kernels, how many passed, and
what was incomplete and why.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

_KEY: pytest.StashKey[_Plugin] = pytest.StashKey()

_PLACES = re.compile(r"\bPTX line \d+,? ?|\b0x[0-9a-f]+\b|\b\d{3,}\b")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tensorladder", "tests of GPU kernels on the virtual GPU")
    group.addoption("--vgpu", metavar="ARCH", help="run GPU tests on the virtual GPU of this architecture")
    group.addoption("--vgpu-async", metavar="POLICY", default="eager", help="when asynchronous effects happen: eager, "
                    "lazy, random:N or timed")  # fmt: skip
    group.addoption("--vgpu-check", action="store_true", help="look for hazards; a test whose kernels have one fails")
    group.addoption("--vgpu-baseline", metavar="F.json", help="known hazards, which do not count")
    group.addoption("--vgpu-write-baseline", metavar="F.json", help="accept the hazards that are found, from now on")
    group.addoption("--vgpu-sarif", metavar="F.sarif", help="hazards as SARIF, for code scanning")
    group.addoption("--vgpu-break", metavar="WHERE[@WHEN]", action="append", help="stop the first warp that comes to a "
                    "line, show what the machine holds, and end the run: as --break of tensorladder exec")  # fmt: skip
    group.addoption("--vgpu-dump", metavar="smem:ADDR:BYTES[:TYPE]", action="append", help="memory to show there too; "
                    "or tmem:COLUMN:COLUMNS")  # fmt: skip
    group.addoption("--vgpu-continue", metavar="N", type=int, help="show the first N hits and go on with the tests")
    group.addoption("--vgpu-timeout", metavar="SECONDS", type=float, help="stop a launch after this long")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, object, object]:
    """Attach the virtual GPU before anything of the library under test is imported, and before pytest takes the
    process's outputs for its own."""
    options = early_config.known_args_namespace
    files = {name: getattr(options, f"vgpu_{name}") for name in ("baseline", "write_baseline", "sarif")}
    given = [f"--vgpu-{name.replace('_', '-')}" for name, path in files.items() if path is not None]
    if given and not (options.vgpu and options.vgpu_check):
        raise pytest.UsageError(f"{given[0]} is of hazards: give --vgpu ARCH and --vgpu-check")
    stops = {name: getattr(options, f"vgpu_{name}") for name in ("break", "dump", "continue")}
    asked = [f"--vgpu-{name}" for name, given in stops.items() if given is not None]
    if asked and not options.vgpu:
        raise pytest.UsageError(f"{asked[0]} is of kernels on the virtual GPU: give --vgpu ARCH")
    if options.vgpu:
        home = early_config.invocation_params.dir
        places = {name: None if path is None else str(home / path) for name, path in files.items()}
        early_config.stash[_KEY] = _Plugin(
            options.vgpu, options.vgpu_async, options.vgpu_timeout, places if options.vgpu_check else None, stops
        )
    return (yield)


def pytest_configure(config: pytest.Config) -> None:
    plugin = config.stash.get(_KEY, None)
    if plugin is not None:
        config.pluginmanager.register(plugin, "tensorladder-vgpu")
        # CuTe DSL warns of each kernel, as its PTX is kept
        config.addinivalue_line("filterwarnings", "ignore:Cache is disabled as user wants to generate")


def pytest_unconfigure(config: pytest.Config) -> None:
    plugin = config.stash.get(_KEY, None)
    if plugin is not None:
        plugin.detach()


class _Stops:
    """Breakpoints of a test run, and what they showed: of this process and, with pytest-xdist, of its workers.

    points: a vgpu.debug.Breakpoints, None without any.
    """

    def __init__(self, given: Mapping[str, Any]):
        from tensorladder.measure.breakpoints import breakpoints

        self._new: list[Any] = []
        self.shown: list[tuple[str, str]] = []
        self.points = breakpoints(
            given["break"] or (), given["dump"] or (), given["continue"], self._new.append, whole=False
        )

    def leave(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """What a test's kernels met, with its report; a test that was stopped ends the run."""
        if self.points is None:
            return
        new, self._new[:] = [(dump.record["break"], str(dump)) for dump in self._new], []
        report.vgpu_stops = new  # type: ignore[attr-defined]
        if self.points.stopped is not None and report.when == "call":
            text = f"stopped at breakpoint {self.points.stopped.record['break']}"
            report.outcome, report.longrepr = "failed", text
            item.session.shouldstop = text

    def take(self, report: pytest.TestReport) -> None:
        self.shown += [(where, f"{report.nodeid}\n{dump}") for where, dump in getattr(report, "vgpu_stops", ())]

    def lines(self, workers: bool) -> Iterator[str]:
        """What was shown, and what was not; workers: the tests ran in other processes."""
        if self.points is None:
            return
        yield from (dump for _, dump in self.shown)
        wrong = None if workers else self.misplaced()
        if wrong is not None:
            yield wrong
        elif not workers and self.points.stopped is None:
            yield from map(_with_prefix, self.points.unmet())
        elif workers:
            met = {where for where, _ in self.shown}
            texts = [point.text for point in self.points.points]
            yield from (f"--vgpu-break {text}: stopped nothing" for text in texts if text not in met)

    def misplaced(self) -> str | None:
        """A breakpoint at a line that no kernel has, in words."""
        from tensorladder.core.errors import UsageError

        try:
            if self.points is not None:
                self.points.require_places()
        except UsageError as error:
            return _with_prefix(str(error))
        return None


def _with_prefix(text: str) -> str:
    """A message with the options as they are called here."""
    return re.sub(r"--(?=break|dump|continue)", "--vgpu-", text)


class _Plugin:
    """The virtual GPU of a test run, and the count of what came of its tests."""

    def __init__(
        self,
        arch: str,
        policy: str,
        timeout: float | None,
        check: Mapping[str, str | None] | None,
        stops: Mapping[str, Any],
    ):
        """check: the files of a check for hazards; None: without one. stops: the options of breakpoints."""
        from tensorladder.core.errors import TensorladderError

        self._stack = ExitStack()
        self.outcomes: Counter[str] = Counter()
        self.incomplete: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self.hazards: Counter[str] = Counter()
        self.stale: list[str] = []
        self.accepted = self.launched = 0
        self.checker: Any = None
        self.files: Any = None
        self.unchecked: Any = None  # of this process, since the last report
        self.unseen = 0
        try:
            self.stops = _Stops(stops)
            self.session = self._attach(arch, policy, timeout, check)
        except TensorladderError as error:
            raise pytest.UsageError(f"--vgpu: {_with_prefix(str(error))}") from None
        self.name = f"{self.session.arch.name}, {policy}{', hazards checked' if check else ''}"

    def _attach(self, arch: str, policy: str, timeout: float | None, check: Mapping[str, str | None] | None) -> Any:
        from tensorladder.core.arch import find
        from tensorladder.measure.hazard_files import HazardFiles
        from tensorladder.measure.hazards import new_checker
        from tensorladder.measure.request import parse_policy
        from tensorladder.measure.scripts import ErrorsSeen, around_launches, hooks, unchecked
        from tensorladder.vgpu.driver import attached

        if check is not None:
            self.checker, self.files = new_checker(), HazardFiles(junit=None, prefix="--vgpu-", **check)
            self.unchecked = self._stack.enter_context(unchecked())
        errors = ErrorsSeen()
        self._stack.callback(errors.close)
        self._stack.enter_context(around_launches(errors))
        options = {"checker": self.checker, "breakpoints": self.stops.points, "timeout": timeout, "hooks": hooks()}
        return self._stack.enter_context(attached(find(arch).name, parse_policy(policy), **options))

    def detach(self) -> None:
        self._stack.close()

    def pytest_report_header(self) -> str:
        return f"virtual GPU: {self.name} (no time printed by a test is a GPU's)"

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.session.failure = self.session.incomplete = None
        self.session.launches = 0
        reporter = item.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:  # a launch may end the process at once
            reporter.flush()
        if self.checker is not None:
            self.checker.findings.clear()
            self.checker.order.synchronize()  # what an earlier test left running is not this one's
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if self.unchecked is not None:
            report.vgpu_unchecked, self.unchecked.launches = self.unchecked.launches, 0  # type: ignore[attr-defined]
        report.vgpu_launches = self.session.launches if report.when == "call" else 0  # type: ignore[attr-defined]
        reason = self._reason(call.excinfo.value if report.failed and call.excinfo else None)
        if reason is not None:
            path, line, _ = item.location
            report.outcome = "skipped"
            report.longrepr = (path, line or 0, f"incomplete: {reason}")
            report.vgpu_incomplete = reason  # type: ignore[attr-defined]
            self.session.incomplete = None  # the next phase of the test is not to blame
        elif report.failed and self.session.failure is not None:
            report.sections.append(("virtual GPU", str(self.session.failure)))
        if self.checker is not None and report.when == "call":
            self._judge(item, report)
        self.stops.leave(item, report)
        return report

    def _judge(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """What the checker found in a test's launches: an error fails a test that passed, unless it is known.

        JUnit files of pytest's have each finding as a property of the test case.
        """
        from tensorladder.core.findings import Verdict

        found = self.checker.report(report.nodeid)
        # the process that writes the files takes them from here: with xdist that is another one
        report.vgpu_findings = [f.to_json() for f in found.findings]  # type: ignore[attr-defined]
        judged = self.files.judge(found)
        item.user_properties += [("hazard accepted", _on_one_line(f)) for f in judged.accepted]
        found = judged.report
        if not found.findings:
            return
        item.user_properties += [("hazard", _on_one_line(f)) for f in found.findings]
        text = "\n".join(str(finding) for finding in found.grouped())
        report.vgpu_hazards = [f"{f.severity}: {f.kind}" for f in found.findings]  # type: ignore[attr-defined]
        if found.verdict is Verdict.ERROR and report.passed:
            report.outcome = "failed"
            report.longrepr = text
        else:
            report.sections.append(("hazards", text))

    def _reason(self, error: BaseException | None) -> str | None:
        """Why what a test did, or failed of, was not modelled; None where that is not so."""
        from tensorladder.core.errors import Unsupported
        from tensorladder.vgpu.driver.gaps import gap_of

        if self.session.incomplete is not None:
            return str(self.session.incomplete)
        if error is None or isinstance(error, Unsupported):
            return str(error) if error else None
        return gap_of(error)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> Any:
        if getattr(report, "vgpu_incomplete", None) is None:
            return None
        return "incomplete", "i", ("INCOMPLETE", {"yellow": True})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reason = getattr(report, "vgpu_incomplete", None)
        if reason is not None:
            self.outcomes["incomplete"] += 1
            self.incomplete[_grouped(reason)] += 1
        elif report.when == "call" or report.outcome != "passed":
            word = "expected to fail" if hasattr(report, "wasxfail") and report.skipped else report.outcome
            self.outcomes[word] += 1
            if word == "skipped" and isinstance(report.longrepr, tuple):
                self.skipped[report.longrepr[2].removeprefix("Skipped: ")] += 1
        self.stops.take(report)
        self.launched += bool(getattr(report, "vgpu_launches", 0))
        self.unseen += getattr(report, "vgpu_unchecked", 0)
        self.hazards.update(set(getattr(report, "vgpu_hazards", ())))
        if self.files is not None and hasattr(report, "vgpu_findings"):
            self._keep(report.nodeid, report.vgpu_findings, report.duration)

    def _keep(self, test: str, findings: Sequence[Mapping[str, Any]], seconds: float) -> None:
        """A test's findings, for the files and the summary."""
        from tensorladder.core.findings import Finding, Report

        judged = self.files.take(Report(test, tuple(Finding.from_json(one) for one in findings)), seconds)
        self.accepted += len(judged.accepted)
        self.stale += [f"{test}: {print_}" for print_, _ in judged.stale]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        from tensorladder.core.errors import TensorladderError

        if not _has_workers(session.config) and self.stops.misplaced() is not None:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
        if self.files is None or hasattr(session.config, "workerinput"):
            return
        try:
            self.files.write()
        except TensorladderError as error:
            raise pytest.UsageError(str(error)) from None

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        write = terminalreporter.write_line
        terminalreporter.section(f"virtual GPU: {self.name}")
        words = ("passed", "failed", "incomplete", "expected to fail", "skipped")
        counts = ", ".join(f"{self.outcomes[word]} {word}" for word in words if self.outcomes[word])
        write(f"{sum(self.outcomes.values())} tests: {counts or 'none'}; {self.launched} launched kernels")
        for title, reasons in (
            ("incomplete", self.incomplete),
            ("tests with hazards", self.hazards),
            ("skipped by the tests", self.skipped),
        ):
            if reasons:
                write(f"{title}:")
                for reason, count in reasons.most_common():
                    write(f"  {count:5} {reason}")
        for line in self.stops.lines(_has_workers(terminalreporter.config)):
            write(line)
        if self.unseen:
            write(str(replace(self.unchecked, launches=self.unseen)))
        if self.accepted:
            write(f"hazards that the baseline accepts: {self.accepted}")
        if self.stale:
            write("no longer found, delete it from the baseline:")
            for line in self.stale:
                write(f"  {line}")


def _has_workers(config: pytest.Config) -> bool:
    """Whether pytest-xdist runs the tests in other processes."""
    return bool(getattr(config.option, "numprocesses", None) or getattr(config.option, "tx", None))


def _on_one_line(finding: Any) -> str:
    """A finding as the value of a property."""
    return " ".join(str(finding).split())


def _grouped(reason: str) -> str:
    """A reason without what differs from test to test: places in the PTX, addresses and large numbers."""
    return " ".join(_PLACES.sub("..", reason).split())[:200]
