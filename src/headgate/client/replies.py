"""What a reply amounts to: an Answer, no answer at all, or a question that was wrong.

Only status 200 with a whole, coherent OK admits (R28). A no in any dialect stays a no: it
must never count as unavailability, on which a client may go ahead unthrottled (R50).
"""

from __future__ import annotations

from typing import NamedTuple

from headgate.client.answers import REFUSED, Answer
from headgate.client.http1 import Response
from headgate.client.parsing import MAX_RETRY_AFTER_S, BadAnswer, parse_answer, parse_object
from headgate.client.question import Question
from headgate.errors import InvalidRequest

# Asking again would be answered alike: the caller has to change something first.
_WRONG_QUESTION = frozenset({400, 401, 403, 405, 413, 414, 415, 422, 431})
MISDIRECTED_REQUEST = 421
"""With a verdict it says where to ask; as a problem, that the agent does not go by the name that it
was asked under. That is for somebody to put right, and no silence on which work may go ahead."""
# These statuses say no by themselves, whoever stands between us and the agent.
_REFUSALS = frozenset({417, 424, 429})


class NoAnswer(NamedTuple):
    detail: str


def read_reply(reply: Response | NoAnswer, question: Question) -> Answer | NoAnswer:
    if isinstance(reply, NoAnswer):
        return reply
    if reply.status in _WRONG_QUESTION:
        raise _wrong_question(reply, question)
    try:
        return _coherent(parse_answer(reply.body, question.databases), reply, question)
    except BadAnswer as fault:
        if reply.status in _REFUSALS:
            return _bare_refusal(reply)
        if reply.status == MISDIRECTED_REQUEST and _is_problem(reply):
            raise _wrong_question(reply, question) from None
        return NoAnswer(f"status {reply.status} came with a body that is no answer: {fault}")


def _coherent(answer: Answer, reply: Response, question: Question) -> Answer:
    if answer.admitted and reply.status != 200:
        raise BadAnswer("it says OK, its status does not")
    if answer.read_only != question.read_only:
        kinds = {True: "a read check", False: "a write check"}
        asked, answered = kinds[question.read_only], kinds[answer.read_only]
        raise BadAnswer(f"{asked} was answered as {answered}")
    return answer


def _bare_refusal(reply: Response) -> Answer:
    return Answer(
        verdict=REFUSED,
        admitted=False,
        reason=f"refused with status {reply.status} and no verdict",
        retry_after_s=_retry_after_s(reply),
    )


def _retry_after_s(reply: Response) -> float | None:
    text = reply.headers.get("retry-after", "")
    if not (text.isascii() and text.isdigit() and len(text) <= 8):
        return None
    return min(float(text), MAX_RETRY_AFTER_S)


def _is_problem(reply: Response) -> bool:
    return reply.headers.get("content-type", "").startswith("application/problem+json")


def _wrong_question(reply: Response, question: Question) -> InvalidRequest:
    detail, field = "no detail given", None
    try:
        problem = parse_object(reply.body)
    except BadAnswer:
        problem = {}
    if isinstance(problem.get("detail"), str):
        detail = problem["detail"]
    if isinstance(problem.get("field"), str):
        field = problem["field"]
    message = f"{question}: the agent refuses the question itself (status {reply.status}): {detail}"
    return InvalidRequest(message, status=reply.status, field=field)
