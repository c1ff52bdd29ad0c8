from __future__ import annotations

import dataclasses
import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser

import numpy as np
import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from llm_sampler.kernels import Problem
from llm_sampler.objectives.intervals import median_interval, overlap
from llm_sampler.objectives.recording import Recording
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.studies.archive import ArchiveError
from llm_sampler.studies.records import read_records
from llm_sampler.studies.report_data import Report, build_report
from llm_sampler.studies.report_figures import curve_points, drawings, log_ticks, plain_study, thinned
from llm_sampler.studies.report_html import report_html
from llm_sampler.studies.report_text import report_json, report_text
from llm_sampler.studies.stability import Stability, stability_from_recordings, stability_live
from llm_sampler.task import Task, write_task

Add = Callable[..., optuna.Study]
DEFAULT = {"x": 2, "y": 2, "z": "a"}
FAST = {"x": 8, "y": 4, "z": "b"}
NEAR = {"x": 7, "y": 4, "z": "b"}
FAILS = {"x": 1, "y": 0, "z": "a"}
NEW, OLD = {"triton": "3.6.0"}, {"triton": "3.4.0"}
NONE = Stability.of((), why_none="nothing else is recorded")


@pytest.fixture
def study(add_study: Add) -> optuna.Study:
    trials = [(DEFAULT, 12.0, NEW), (FAST, 1.0, NEW), (NEAR, 1.002, NEW), (FAILS, None, NEW)]
    trials += [({"x": x, "y": 3, "z": z}, 20.0 - x, NEW) for x in range(1, 8) for z in "ab"]
    study = add_study("toy", trials=trials)
    calls = [{"id": "1", "prompt_tokens": 900, "completion_tokens": 100, "seconds": 2.5}, {"id": "2", "error": "429"}]
    by_llm = study.trials[-1]
    by_llm.params = {"x": 8, "y": 3, "z": "b"}
    by_llm.values = [5.0]
    by_llm.user_attrs |= {
        "kernel:measurement": {**by_llm.user_attrs["kernel:measurement"], "median_ms": 5.0},
        "llm_sampler:proposed_by": "llm",
        "llm_sampler:rationale": "wide rows",
        "llm_sampler:calls": calls,
    }
    study.add_trial(by_llm)
    return study


@pytest.fixture
def report(study: optuna.Study) -> Report:
    return build_report(study, NONE)


def test_the_numbers_are_those_of_the_trials(study: optuna.Study, report: Report) -> None:
    """Recomputed from Optuna's trials with nothing of ours."""
    trials = study.get_trials()
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    best = min(complete, key=lambda trial: trial.value or math.inf)
    default = next(trial for trial in complete if trial.params == DEFAULT)
    measured = {trial.number: trial.user_attrs["kernel:measurement"] for trial in complete}
    data = json.loads(report_json(report))
    rows = {row["name"]: row for row in data["timings"]}
    assert rows["best"]["trial"] == best.number
    assert rows["best"]["median_ms"] == best.value
    assert rows["best"]["configuration"] == best.params
    assert best.value is not None
    assert default.value is not None
    assert rows["best"]["versus_default"] == default.value / best.value
    assert rows["best"]["versus_reference"] == measured[best.number]["reference_ms"] / best.value
    assert rows["best"]["roofline_share"] == 0.5 / best.value
    assert rows["default"]["median_ms"] == default.value
    assert rows["PyTorch"]["median_ms"] == statistics.median(m["reference_ms"] for m in measured.values())
    low, high = rows["best"]["interval_ms"]
    samples = sorted(measured[best.number]["samples"])
    assert (low, high) == (samples[1], samples[-2])  # n = 9: P(Binomial(9, 1/2) < 2) = 0.0195
    assert data["measured"] == len(trials)
    assert [row["record"]["number"] for row in data["ranked"]] == [
        trial.number for trial in sorted(complete, key=lambda trial: (trial.value, trial.number))[:10]
    ]
    assert {row["name"]: row["measured"] for row in data["proposers"]} == Counter(
        trial.user_attrs["llm_sampler:proposed_by"] for trial in trials
    )
    failed = Counter(t.user_attrs["kernel:status"] for t in trials if t.state == TrialState.PRUNED)
    assert {row["status"]: row["count"] for row in data["failures"]} == failed == {"out_of_resources": 1}
    importances = optuna.importance.get_param_importances(study)
    assert {row["name"]: row["importance"] for row in data["impacts"]} == importances
    for row in data["impacts"]:
        for choice in row["choices"]:
            own = [trial for trial in trials if trial.params[row["name"]] == choice["choice"]]
            times = [trial.value for trial in own if trial.value is not None]
            assert choice["measured"] == len(own)
            assert choice["best_ms"] == min(times, default=None)
            assert choice["median_ms"] == (float(np.median(times)) if times else None)
    assert (data["llm"]["calls"], data["llm"]["tokens"], data["llm"]["seconds"]) == (2, 1000, 2.5)
    assert data["llm"]["share"] == 1 / len(trials)


def test_the_page_and_the_text_show_these_numbers(report: Report) -> None:
    page, text = report_html(report), report_text(report)
    for shown in ("1 ms", "12.00x", "2.00x", "50 %", "out"):
        assert shown in page
        assert shown in text
    assert "1 other configuration cannot be told from it" in text
    assert "triton.Config({'x': 8, 'y': 4, 'z': 'b'})" in text
    assert "2 calls, 1 of them failed, 1,000 tokens, 2.5 s" in text
    history = json.loads(re.search(r'data-plot="plot-history">(.*?)</script>', page)[1])  # type: ignore[index]
    ys = {trace["name"]: trace["y"] for trace in history["data"]}
    assert ys["llm (1)"] == [5.0]
    assert ys["default (1)"] == [12.0]
    assert ys["least so far"][0] == 12.0
    assert ys["least so far"][-1] == 1.0


def test_curve_points_have_the_least_time_so_far(study: optuna.Study) -> None:
    points = curve_points(read_records(study))
    values = [math.inf if trial.value is None else trial.value for trial in study.trials]
    assert [point.incumbent_ms for point in points] == list(np.minimum.accumulate(values))
    assert (points[3].median_ms, points[3].status, points[3].proposed_by) == (None, "out_of_resources", "tpe")


def test_the_page_has_every_figure_once_and_plotly_once(report: Report) -> None:
    page = report_html(report)
    names = re.findall(r'data-plot="plot-(\w+)"', page)
    assert names == [
        "history",
        "optimization",
        "importances",
        "slice",
        "parallel",
        "rank",
        "edf",
        "timeline",
    ]
    assert page.count("plotly.js v") == 1
    assert len(page.encode()) < 6_000_000
    for name in names:
        assert json.loads(re.search(f'data-plot="plot-{name}">(.*?)</script>', page)[1])["data"]  # type: ignore[index]


class Outline(HTMLParser):
    """Headings, references and what an assistive technology needs."""

    def __init__(self) -> None:
        super().__init__()
        self.levels: list[int] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.regions: list[dict[str, str | None]] = []
        self.tags: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags[tag] += 1
        if re.fullmatch(r"h[1-6]", tag):
            self.levels.append(int(tag[1]))
        self.ids += [values["id"] or ""] if "id" in values else []
        self.links += [values["href"] or ""] if tag == "a" else []
        self.loads += [v or "" for n, v in attrs if n in ("src", "srcset", "data", "action") or (tag == "link")]
        if values.get("role") == "img":
            self.images.append(values)
        if values.get("role") == "region":
            self.regions.append(values)


def test_the_page_is_self_contained_and_has_keyboard_and_reader_basics(report: Report) -> None:
    page = re.sub(r"<script>.*?</script>", "", report_html(report), flags=re.DOTALL)
    outline = Outline()
    outline.feed(page)
    assert outline.loads == []
    assert "default-src 'none'" in page
    assert all(link.startswith("#") and link[1:] in outline.ids for link in outline.links)
    assert len(outline.ids) == len(set(outline.ids))
    assert outline.levels[0] == 1
    assert outline.levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(outline.levels, outline.levels[1:], strict=False))
    assert '<html lang="en">' in page
    assert (outline.tags["main"], outline.tags["nav"], outline.tags["title"]) == (1, 1, 1)
    assert outline.images
    assert all(image["aria-label"] for image in outline.images)
    # What scrolls can be reached by keyboard and has a name.
    assert all(region["tabindex"] == "0" and region["aria-label"] for region in outline.regions)
    assert outline.tags["table"] <= len(outline.regions)
    assert page.count("prefers-color-scheme: dark") >= 1


HOSTILE = '</script><script>alert("x")</script><img src=x onerror=alert(1)>\x1b[2J{{ 7000*7000007 }}'


def test_hostile_text_is_shown_as_text(add_study: Add, storage: RDBStorage) -> None:
    study = add_study("toy", trials=[(DEFAULT, 12.0, NEW), (FAST, 1.0, {"triton": HOSTILE}), (FAILS, None, NEW)])
    task = Task.from_json(study.user_attrs["llm_sampler:task:0"])
    names = dict(zip(("x", "y", "z"), (f"x{HOSTILE}", "y", "z"), strict=True))
    parameters = tuple(dataclasses.replace(p, name=names[p.name], meaning=HOSTILE) for p in task.space.parameters)
    default = {names[name]: value for name, value in DEFAULT.items()}
    space = dataclasses.replace(task.space, parameters=parameters, restrictions=(), default=default)
    hostile = optuna.create_study(storage=storage, study_name=f"kernel{HOSTILE}/a/b/c")
    write_task(
        hostile,
        dataclasses.replace(
            task, title=HOSTILE, space=space, problem={HOSTILE: HOSTILE}, device={"name": HOSTILE}, description=HOSTILE
        ),
    )
    for trial in study.trials:
        trial.params = {names[name]: value for name, value in trial.params.items()}
        trial.distributions = {names[name]: value for name, value in trial.distributions.items()}
        trial.user_attrs |= {
            "llm_sampler:rationale": HOSTILE,
            "llm_sampler:proposed_by": HOSTILE,
            "llm_sampler:fallback": HOSTILE,
            "llm_sampler:calls": [{"error": HOSTILE}],
        }
        if trial.state == TrialState.PRUNED:
            trial.user_attrs["kernel:measurement"] = {"status": "timeout", "detail": HOSTILE}
        hostile.add_trial(trial)
    report = build_report(hostile, NONE)
    page = report_html(report)
    own = page.replace(re.search(r"<script>.*?</script>", page, re.DOTALL)[0], "")  # type: ignore[index]
    assert "<script>alert" not in own
    assert "<img" not in own
    assert "&lt;img src=x onerror=alert(1)&gt;" in own
    assert "49000049000" not in own, "templates in texts are not evaluated"
    for text in re.findall(r'data-plot="[^"]*">(.*?)</script>', own, re.DOTALL):
        # Plotly reads texts as HTML: what it gets is escaped twice over.
        assert "<img" not in json.dumps(json.loads(text))
    assert "\x1b" not in report_text(report)
    json.loads(report_json(report))


def test_a_report_of_nothing_is_a_report(add_study: Add) -> None:
    for trials in ([], [(FAILS, None, NEW)], [(DEFAULT, 12.0, NEW)]):
        study = add_study("toy", trials=trials, suffix=str(len(trials)) + str(trials)[:9])
        report = build_report(study, NONE)
        assert "<main>" in report_html(report)
        assert report_text(report)
        assert json.loads(report_json(report))["measured"] == len(trials)


def test_stale_trials_are_marked_and_do_not_win(add_study: Add) -> None:
    study = add_study("toy", trials=[(FAST, 1.0, OLD), (DEFAULT, 12.0, NEW), (NEAR, 2.0, NEW)])
    report = build_report(study, NONE)
    assert report.best is not None
    assert (report.best.record.median_ms, report.stale, report.best.stale) == (2.0, 1, False)
    assert [one.stale for one in report.ranked] == [False, False, True]
    assert "1 timed configurations are stale" in report_text(report)


def test_somebody_elses_study_is_refused(storage: RDBStorage) -> None:
    with pytest.raises(ArchiveError, match="holds no task"):
        build_report(optuna.create_study(storage=storage, study_name="other"), NONE)


def test_optunas_figures_get_nothing_but_parameters_and_times(study: optuna.Study, report: Report) -> None:
    plain = plain_study(report.records, report.space)
    assert all(not trial.user_attrs for trial in plain.trials)
    assert [trial.value for trial in plain.trials] == [trial.value for trial in study.trials]
    assert len(json.dumps([len(drawing.figure.to_json()) for drawing in drawings(report)])) < 200


def test_a_large_study_is_drawn_thinned_with_its_fastest_half(report: Report) -> None:
    record = report.records[0]
    many = [
        dataclasses.replace(record, number=number, median_ms=float((number * 7919) % 1_000 + 1))
        for number in range(900)
    ]
    drawn = thinned(many, 100)
    numbers = [record.number for record in drawn]
    assert len(set(numbers)) == 100
    assert numbers == sorted(numbers)
    fastest = sorted(many, key=lambda record: record.median_ms or 0)[:50]
    assert {record.number for record in fastest} <= set(numbers)
    assert thinned(many[:80], 100) == many[:80]


@pytest.mark.parametrize(("n", "ranks"), [(5, None), (6, (1, 6)), (9, (2, 8)), (20, (6, 15)), (100, (40, 61))])
def test_intervals_of_medians_are_those_of_the_binomial(n: int, ranks: tuple[int, int] | None) -> None:
    # scipy.stats.binom.ppf(0.025, n, 0.5) gives the same ranks.
    samples = np.random.default_rng(0).permutation(n) + 1.0
    assert median_interval(samples.tolist()) == ranks


def test_an_interval_covers_the_median_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    intervals = [median_interval(rng.exponential(size=20).tolist()) for _ in range(2_000)]
    covered = np.mean([low <= math.log(2) <= high for low, high in intervals])  # type: ignore[misc]
    assert 0.945 < covered < 0.975


@pytest.mark.parametrize(("low", "high"), [(0.13, 0.9), (1.0, 1.0), (0.02, 50.0), (1e-6, 1e6)])
def test_marks_of_the_axis_surround_the_times(low: float, high: float) -> None:
    marks = log_ticks(low, high)
    assert marks == sorted(marks)
    assert marks[0] <= low
    assert marks[-1] >= high
    assert 2 <= len(marks) <= 20


def test_overlap() -> None:
    assert overlap((1, 2), (2, 3))
    assert not overlap((1, 2), (2.1, 3))
    assert not overlap(None, (1, 2))


def sized(toy: Callable[..., Recording], rows: int, default: dict[str, int | str] | None = None) -> Recording:
    return dataclasses.replace(toy(default), problem=Problem({"rows": rows, "columns": 8}))


def test_stability_compares_with_the_best_of_each_other_recording(toy: Callable[..., Recording]) -> None:
    recordings = [sized(toy, rows) for rows in (8, 16, 32)]
    other = dataclasses.replace(sized(toy, 64), device="Other GPU")
    stability = stability_from_recordings("toy", recordings[0].problem, "toy gpu", NEAR, [*recordings, other])
    assert [result.problem for result in stability.results] == ["16x8-fp16", "32x8-fp16"]
    result = stability.results[0]
    assert (result.winner_ms, result.default_ms, result.reference_ms, result.least_ms) == (2.0, 12.0, 2.0, 1.0)
    assert stability.score == pytest.approx(0.5)
    assert stability.verdict.startswith("Specialised: it loses much on other sizes, at worst 2.00x")
    assert stability_from_recordings("toy", None, "Toy GPU", FAST, recordings).verdict.startswith("Robust")


def test_stability_says_where_the_winner_does_not_run(toy: Callable[..., Recording]) -> None:
    recordings = [sized(toy, 16)]
    stability = stability_from_recordings("toy", None, "Toy GPU", {"x": 8, "y": 0, "z": "a"}, recordings)
    assert (stability.score, stability.results[0].winner) == (None, "not allowed")
    assert stability.results[0].detail == "x < 8 or y > 0"
    assert "does not run on 16x8-fp16" in stability.verdict
    failed = stability_from_recordings("toy", None, "Toy GPU", FAILS, recordings)
    assert (failed.results[0].winner, failed.results[0].detail) == ("out_of_resources", "required 9 of 8 bytes")
    nothing = stability_from_recordings("toy", None, "Toy GPU", FAST, [])
    assert nothing.verdict == "Unknown: no other problem of toy is recorded on Toy GPU."
    assert stability_from_recordings("toy", None, "Toy GPU", None, recordings).results == ()


def test_stability_can_be_measured_live(toy: Callable[..., Recording]) -> None:
    closed = []

    class Counting(ReplayEvaluator):
        def close(self) -> None:
            closed.append(self)

    problems = [Problem({"rows": rows, "columns": 8}) for rows in (16, 32)]
    evaluators = [(problem, Counting(sized(toy, problem.sizes["rows"]))) for problem in problems]
    stability = stability_live(evaluators, NEAR)
    assert [(result.source, result.winner_ms, result.default_ms) for result in stability.results] == [
        ("live", 2.0, 12.0)
    ] * 2
    # Nothing faster than the winner is known where only it and the default were measured.
    assert stability.score == 1.0
    assert len(closed) == 2
