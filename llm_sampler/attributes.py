"""Names of the attributes that samplers leave in a study: who proposed a trial, and why.

Scalars are columns in a dashboard; each value stays under 60 kB. Everything that is counted (calls, tokens, fallbacks)
is summed from trials: a counter in one study attribute loses updates of workers that write at the same time.
"""

from __future__ import annotations

PREFIX = "llm_sampler:"

# User attributes of a trial.
PROPOSED_BY = f"{PREFIX}proposed_by"
"""``llm``, ``default``, ``archive``, ``user``, ``local``, or the lower-case name of a sampler (``tpe``, ``random``)."""
FALLBACK = f"{PREFIX}fallback"
"""Why another sampler proposed what an LLM should have; only where that happened."""
RATIONALE = f"{PREFIX}rationale"
"""The LLM's reason for the proposal, at most 500 characters."""
CALL = f"{PREFIX}call"
"""Identifier of the call whose reply held the proposal."""
FAMILY = f"{PREFIX}family"
"""The family that the LLM put the proposal in, e.g. ``safe``."""
CHANGES = f"{PREFIX}changes"
"""What the reply checks changed in the LLM's proposal, e.g. ``num_warps: 6 -> 8``; only where they did."""
CALLS = f"{PREFIX}calls"
"""JSON list: outcomes of the calls that ended before this trial, each with id, tokens, seconds and error."""

# System attributes of a trial: private to the samplers.
CLAIM = f"{PREFIX}claim"
"""JSON object: the configuration that a running trial has been given, name to position in its distribution."""
RESERVED = f"{PREFIX}reserved"
"""JSON list: identifiers of the calls that count against the study's budget."""
OFFERS = f"{PREFIX}offers"
"""JSON list: what calls brought, for all workers: call, whether it was the opening, and proposals."""

# User attributes of a study.
MODEL = f"{PREFIX}model"
"""Name of the model that answered last."""

USER = "user"
LLM = "llm"
LOCAL = "local"
INDEPENDENT = "independent"
DEFAULT = "default"
ARCHIVE = "archive"


def sampler_name(sampler: object) -> str:
    """A sampler as ``proposed_by`` names it: the class name in lower case, without ``Sampler``."""
    name = type(sampler).__name__
    return (name.removesuffix("Sampler") or name).lower()
