"""A table of faults, each from a real server: none ends a study, loses a trial, or goes unrecorded."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from chat_server import Handler, chat_server
from four_numbers import OPENING, keys, proposed_by, run
from optuna.trial import TrialState

from llm_sampler.attributes import CALLS, FALLBACK
from llm_sampler.sampler import LLMSampler

TIMEOUT_S = 0.6
GOOD = json.dumps({"proposals": [{"configuration": c} for c in OPENING]})
BROKEN = json.dumps({"proposals": [{"configuration": {**OPENING[0], "p0": "many"}}]})


def text(content: str | None, **message: object) -> Callable[[Handler], None]:
    return lambda request: request.send_text(content, **message)


def error(status: int, message: str = "no", **headers: str) -> Callable[[Handler], None]:
    return lambda request: request.send_error_text(status, message, headers)


def body(data: str, **arguments: object) -> Callable[[Handler], None]:
    return lambda request: request.send(data, **arguments)  # type: ignore[arg-type]


def hang_up(request: Handler) -> None:
    request.close_connection = True


def reset(request: Handler) -> None:
    """Closes with a reset: what is unread or unsent is thrown away."""
    import socket
    import struct

    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.connection.close()
    request.close_connection = True


def slow(request: Handler) -> None:
    time.sleep(TIMEOUT_S * 2)


def drip(request: Handler) -> None:
    """A byte now and then: every single read is in time, the whole never is."""
    request.send_response(200)
    request.send_header("Content-Type", "application/json")
    request.send_header("Content-Length", "1000")
    request.end_headers()
    for _ in range(20):
        request.wfile.write(b" ")
        request.wfile.flush()
        time.sleep(TIMEOUT_S / 6)


FAULTS: dict[str, tuple[Callable[[Handler], None], str]] = {
    "hang up": (hang_up, "no connection"),
    "reset": (reset, "no connection"),
    "slow": (slow, "no reply"),
    "drip": (drip, "no reply"),
    "cut body": (body('{"choices": [', length=5_000), "no connection"),
    "400": (error(400, "bad"), "HTTP 400: bad"),
    "401": (error(401, "wrong key"), "HTTP 401: wrong key"),
    "403": (error(403, "not yours"), "HTTP 403: not yours"),
    "404": (error(404, "no such model"), "HTTP 404: no such model"),
    "413": (error(413, "too large"), "HTTP 413: too large"),
    "429": (error(429, "busy"), "HTTP 429: busy"),
    "429 with a long Retry-After": (error(429, "busy", **{"Retry-After": "120"}), "HTTP 429: busy"),
    "429 with a date": (
        error(429, "busy", **{"Retry-After": "Wed, 21 Oct 2099 07:28:00 GMT"}),
        "HTTP 429: busy",
    ),
    "429 with nonsense": (error(429, "busy", **{"Retry-After": "soon"}), "HTTP 429: busy"),
    "500": (error(500, "oops"), "HTTP 500: oops"),
    "503": (error(503, "overloaded"), "HTTP 503: overloaded"),
    "529": (error(529, "overloaded"), "HTTP 529: overloaded"),
    "302 to nowhere": (body("", status=302, headers={"Location": "http://127.0.0.1:1/"}), "no connection"),
    "html": (body("<html>login</html>", kind="text/html"), "something else than a chat completion"),
    "html error": (body("<html>oops</html>", status=502, kind="text/html"), "HTTP 502"),
    "no json": (body("{oops"), "cannot be read"),
    "empty body": (body(""), "cannot be read"),
    "another object": (body('{"object": "list", "data": []}'), "something else than a chat completion"),
    "empty choices": (body('{"choices": []}'), "no choices"),
    "null choices": (body('{"choices": null}'), "something else than a chat completion"),
    "choice without message": (body('{"choices": [{"index": 0}]}'), "no text"),
    "null content": (text(None), "no text"),
    "blank content": (text(" \n "), "no text"),
    "length without text": (text(None, finish="length"), "finish reason length"),
    "refusal": (text(None, refusal="I will not"), "refused: I will not"),
    "content filter": (text("", finish="content_filter"), "finish reason content_filter"),
    "tool call": (text(None, tool_calls=[], finish="tool_calls"), "no text"),
    "only hidden reasoning": (text("", reasoning_content="hm"), "only hidden reasoning"),
    "chatter": (text("Let us talk about the weather."), "the reply holds no proposal"),
    "cut within the first proposal": (text(GOOD[:60], finish="length"), "cut off at the limit of tokens"),
    "an unfinished thought": (text(f"<think>{GOOD}"), "the reply holds no proposal"),
    "an empty list": (text('{"proposals": []}'), "the reply holds no proposal"),
    "unknown names": (text(json.dumps([{"p0": 1, "size": 3}])), "unknown parameter 'size'"),
    "values that are no choices": (text(BROKEN), "p0 must be one of (0, 1, 2, 3, 4), got 'many'"),
    "a broken restriction": (text(json.dumps([{"p0": 4, "p1": 4, "p2": 0, "p3": 0}])), "breaks p0 + p1 <= 6"),
    "not a number": (text('[{"p0": NaN, "p1": 0, "p2": 0, "p3": 0}]'), "p0 must be one of"),
    "nothing but nesting": (text("[" * 5_000), "the reply holds no proposal"),
    "nothing but the echo of the question": (text('{"proposals": [{"family": "..."}]}'), "holds no proposal"),
    "control characters": (text("\x00\x07{\x00}"), "the reply holds no proposal"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_recorded_and_the_study_goes_on(fault: str) -> None:
    respond, reason = FAULTS[fault]
    with chat_server(respond) as server:
        start = time.monotonic()
        study = run(LLMSampler(base_url=server.url, model="m", seed=0, timeout_s=TIMEOUT_S), 8)
        seconds = time.monotonic() - start
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 8
    assert len(set(keys(study))) == 8
    assert set(proposed_by(study)) == {"tpe"}
    assert all(reason in trial.user_attrs[FALLBACK] for trial in study.trials)
    assert reason in study.trials[0].user_attrs[CALLS][-1]["error"]
    assert seconds < 2 + TIMEOUT_S


def test_nobody_listening_is_recorded_and_costs_little() -> None:
    with chat_server(hang_up) as server:
        pass
    start = time.monotonic()
    study = run(LLMSampler(base_url=server.url, model="m", seed=0, timeout_s=30), 8)
    assert time.monotonic() - start < 2
    assert all("no connection" in trial.user_attrs[FALLBACK] for trial in study.trials)


def test_a_name_that_does_not_resolve_is_recorded_and_costs_little() -> None:
    study = run(LLMSampler(base_url="http://no-such-host.invalid/v1", model="m", seed=0, timeout_s=2), 4)
    assert all("no " in trial.user_attrs[FALLBACK] for trial in study.trials)


def test_a_server_that_recovers_is_used_again_once_the_breaker_lets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import llm_sampler.breaker

    monkeypatch.setattr(llm_sampler.breaker, "_FIRST_PAUSE_S", 0.0)
    down = [True]

    def respond(request: Handler) -> None:
        if down[0]:
            request.send_error_text(401, "not yet")
        else:
            request.send_text(GOOD)

    with chat_server(respond) as server:
        sampler = LLMSampler(base_url=server.url, model="m", seed=0, wait="always")
        study = run(sampler, 2)
        down[0] = False
        study.optimize(lambda trial: float(sum(trial.suggest_categorical(f"p{i}", range(5)) for i in range(4))), 4)
    assert proposed_by(study) == ["tpe", "tpe", "default", "llm", "llm", "llm"]


@pytest.mark.parametrize("good", [0, 1, 2])
def test_complete_proposals_of_a_truncated_reply_are_used(good: int) -> None:
    cut = GOOD[: GOOD.index("configuration", [0, 40, 110][good]) + 30]
    with chat_server(text(cut, finish="length")) as server:
        study = run(LLMSampler(base_url=server.url, model="m", seed=0), 2 + good)
    assert proposed_by(study).count("llm") == min(good, 2)
