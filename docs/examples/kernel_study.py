"""A kernel's study from Python, replayed from a recording: ``python docs/examples/kernel_study.py``.

On a machine with a GPU, a `GpuEvaluator` in place of the `ReplayEvaluator` measures instead of looking up. The command
`llm-sampler tune matmul` does the same and more: it keeps the study, resumes it, and reports.
"""

from __future__ import annotations

import optuna

from llm_sampler import LLMSampler, write_task
from llm_sampler.attributes import DEFAULT, PROPOSED_BY
from llm_sampler.kernels import find_kernel
from llm_sampler.objectives.kernel_objective import KernelObjective
from llm_sampler.objectives.replay import ReplayEvaluator
from llm_sampler.objectives.shipped import find_recording
from llm_sampler.studies.records import best_first, read_records
from llm_sampler.studies.tasks import recording_task

kernel = find_kernel("matmul")
recording = find_recording(kernel.name, kernel.problems[0])
study = optuna.create_study(sampler=LLMSampler(seed=0))
# What the model is told: source, parameters and their meanings, restrictions, problem, device.
write_task(study, recording_task(recording, kernel))
if recording.space.default is not None:
    study.enqueue_trial(recording.space.default, user_attrs={PROPOSED_BY: DEFAULT})
study.optimize(KernelObjective(ReplayEvaluator(recording)), n_trials=60)

records = read_records(study)
print(f"{sum(record.measured for record in records)} of {len(recording.results)} configurations measured")
for record in best_first(records)[:3]:
    why = f" {record.rationale}" if record.rationale else ""
    print(f"{record.median_ms:.4f} ms, {record.speedup or 1:.2f}x the default, by {record.proposed_by}:{why}")
    print(f"    {record.configuration}")
