"""What share of a model's proposals is legal, by the form in which the server is asked for JSON.

``python tests/benchmarks/legal_share.py BASE_URL [--replies 8] [--batch 6]``

The question is the opening of a study: for the shipped matmul recording with its 13 restrictions, and for a plain space
of three parameters with one restriction. For each form that the server takes: how many configurations its replies held,
how many of them had legal names and values, and how many obeyed the restrictions, too, and repeated no other.
"""

from __future__ import annotations

import argparse

import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution

from llm_sampler.client import ChatError, Endpoint
from llm_sampler.kernels import find_kernel
from llm_sampler.objectives.shipped import find_recording
from llm_sampler.openai_chat import FORMS, OpenAIChat, _Manner
from llm_sampler.prompt import Briefing, build_prompt, reply_schema
from llm_sampler.reply import read_reply
from llm_sampler.search_space import SearchSpace
from llm_sampler.studies.tasks import recording_task

MOST_REPLY_TOKENS = 2_000


def briefings(batch: int) -> dict[str, Briefing]:
    """What is asked, by name."""
    kernel = find_kernel("matmul")
    task = recording_task(find_recording(kernel.name, kernel.problems[0]), kernel)
    plain = {
        "block": CategoricalDistribution([16, 32, 64, 128, 256]),
        "warps": CategoricalDistribution([1, 2, 4, 8]),
        "stages": IntDistribution(1, 5),
    }
    directions = [optuna.study.StudyDirection.MINIMIZE]
    return {
        "matmul": Briefing(
            SearchSpace.from_space(task.space), [], directions, batch, task=task, default=task.space.default
        ),
        "plain": Briefing(SearchSpace(plain, restrictions=["block * stages <= 512"]), [], directions, batch),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base_url")
    parser.add_argument("--replies", type=int, default=8)
    parser.add_argument("--batch", type=int, default=6)
    options = parser.parse_args()
    print(f"{'space':8} {'form':28} {'replies':>7} {'found':>6} {'legal values':>13} {'legal':>6} {'s a reply':>10}")
    for name, briefing in briefings(options.batch).items():
        free = SearchSpace(briefing.space.distributions)
        for number, form in enumerate(FORMS):
            chat = OpenAIChat(Endpoint(None, options.base_url), max_reply_tokens=MOST_REPLY_TOKENS)
            replies = found = values = legal = 0
            seconds = 0.0
            refused = ""
            for _ in range(options.replies):
                chat._manner = _Manner(form=number, limit=1)
                try:
                    answer = chat.complete(
                        build_prompt(briefing), schema=reply_schema(briefing, options.batch), timeout_s=600
                    )
                except ChatError as error:
                    refused = str(error)
                    continue
                if chat.form != form:
                    refused = f"the server refuses it, and was asked for {chat.form}"
                    break
                replies += 1
                seconds += answer.seconds
                reply = read_reply(answer.text, briefing.space, default=briefing.default)
                found += len(reply.proposals) + len(reply.rejections)
                legal += len(reply.proposals)
                unrestricted = read_reply(answer.text, free, default=briefing.default)
                repeated = sum(rejection.reason == "twice in this reply" for rejection in unrestricted.rejections)
                values += len(unrestricted.proposals) + repeated
            if replies:
                mean = seconds / replies
                print(f"{name:8} {form:28} {replies:7} {found:6} {values:13} {legal:6} {mean:10.1f}", flush=True)
            if refused:
                print(f"{name:8} {form:28} {refused[:100]}", flush=True)


if __name__ == "__main__":
    main()
