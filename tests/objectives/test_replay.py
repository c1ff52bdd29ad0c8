from __future__ import annotations

import dataclasses

import pytest

from llm_sampler.objectives.measurement import Measurement
from llm_sampler.objectives.recording import Recorded, Recording, RecordingError
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.space import Parameter, Space

SPACE = Space((Parameter("a", (1, 2, 3)), Parameter("b", (False, True))), ("a < 3 or b",), {"a": 1, "b": False})
RECORDING = Recording(
    "toy",
    SPACE,
    tuple(
        Recorded(c, Measurement("crashed") if c["a"] == 2 else Measurement("ok", median_ms=1.0 + i))
        for i, c in enumerate(SPACE.configurations())
    ),
    device="Some GPU",
    reference_ms=0.5,
)


def test_a_replay_answers_every_allowed_configuration_with_what_was_recorded() -> None:
    evaluator = ReplayEvaluator(RECORDING)
    assert [evaluator.evaluate(r.configuration) for r in RECORDING.results] == [
        r.measurement for r in RECORDING.results
    ]
    assert evaluator.evaluate({"b": True, "a": 2}).status == "crashed"
    assert (evaluator.space, evaluator.device, evaluator.parallel, evaluator.reference_ms) == (
        SPACE,
        "Some GPU",
        1,
        0.5,
    )
    evaluator.close()


@pytest.mark.parametrize("configuration", [{"a": 3, "b": False}, {"a": 1.0, "b": False}, {"a": 1}, {}])
def test_a_replay_invents_nothing(configuration: dict[str, bool | int | float | str]) -> None:
    with pytest.raises(RecordingError, match="was not recorded"):
        ReplayEvaluator(RECORDING).evaluate(configuration)


def test_a_recording_with_a_gap_is_refused_at_once() -> None:
    sample = dataclasses.replace(RECORDING, results=RECORDING.results[:-1], chosen="4 at random")
    with pytest.raises(RecordingError, match=r'chosen: 4 at random\) lacks {"a":3,"b":true}'):
        ReplayEvaluator(sample)
