"""`ReplayEvaluator`: an evaluator that answers from a recording, for machines without the device.

A replay never invents a value: it can only be made of a recording that holds every configuration its space allows.
"""

from __future__ import annotations

from llm_sampler.objectives.measurement import Measurement
from llm_sampler.objectives.recording import Recording, RecordingError
from llm_sampler.space import Configuration, Space, configuration_key


class ReplayEvaluator:
    """Measures by looking up; implements `Evaluator`.

    Args:
        recording: Every allowed configuration of its space, with what came of it.

    Raises:
        RecordingError: The space allows a configuration that was not recorded: a study would ask for it.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        for configuration in recording.space.configurations():
            if configuration_key(configuration) not in recording.by_key:
                raise RecordingError(
                    f"a replay needs every allowed configuration recorded, and this recording of {recording.kernel} "
                    f"({len(recording.results)} configurations, chosen: {recording.chosen}) lacks "
                    f"{configuration_key(configuration)}: record the rest, or narrow its space"
                )

    @property
    def space(self) -> Space:
        """The recording's space, which a newer kernel's may differ from."""
        return self.recording.space

    @property
    def parallel(self) -> int:
        """One: looking up takes no time."""
        return 1

    @property
    def device(self) -> str:
        """Name of the device that was recorded; empty where the recording does not say."""
        return self.recording.device_name

    @property
    def reference_ms(self) -> float | None:
        """Median time of the PyTorch reference over the recording."""
        return self.recording.reference_ms

    def evaluate(self, configuration: Configuration) -> Measurement:
        """What was recorded of the configuration.

        Raises:
            RecordingError: It was not recorded: the study's space is not the recording's.
        """
        try:
            return self.recording.by_key[configuration_key(configuration)]
        except KeyError:
            raise RecordingError(
                f"{configuration_key(configuration)} was not recorded, and a replay invents nothing: "
                "use the recording's own space"
            ) from None

    def close(self) -> None:
        """Nothing to free."""
