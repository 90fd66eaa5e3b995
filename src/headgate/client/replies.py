"""Read a reply: an Answer, no answer at all, or a check that was invalid.

Only status 200 with a whole, consistent OK admits. A rejection in any dialect stays a rejection:
it must never count as unavailability, on which a client may continue unthrottled.
"""

from __future__ import annotations

from typing import NamedTuple

from headgate.client.answers import REJECTED, Answer
from headgate.client.http1 import Response
from headgate.client.parsing import MAX_RETRY_AFTER_S, BadAnswer, parse_answer, parse_object
from headgate.client.question import Question
from headgate.errors import InvalidRequest

# A retry would get the same answer: the caller has to change something first.
_WRONG_QUESTION = frozenset({400, 401, 403, 405, 413, 414, 415, 422, 431})
MISDIRECTED_REQUEST = 421
"""With a verdict, it names the agent to check at. As a problem document, it says that the agent
does not know the host name in the request. An operator must fix that; the client may not go on."""
# These statuses alone are a rejection, even if a proxy in front of the agent sent them.
_REJECTIONS = frozenset({417, 424, 429})


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
        if reply.status in _REJECTIONS:
            return _bare_rejection(reply)
        kind = reply.headers.get("content-type", "")
        if reply.status == MISDIRECTED_REQUEST and kind.startswith("application/problem+json"):
            raise _wrong_question(reply, question) from None
        return NoAnswer(f"HTTP status {reply.status}, and the body is not a valid answer: {fault}")


def _coherent(answer: Answer, reply: Response, question: Question) -> Answer:
    if answer.admitted and reply.status != 200:
        raise BadAnswer(f"the verdict is OK, but the HTTP status is {reply.status}, not 200")
    if answer.read_only != question.read_only:
        kinds = {True: "a read check", False: "a write check"}
        asked, answered = kinds[question.read_only], kinds[answer.read_only]
        raise BadAnswer(f"{asked} was answered as {answered}")
    return answer


def _bare_rejection(reply: Response) -> Answer:
    retry_after = reply.headers.get("retry-after", "")
    is_number = retry_after.isascii() and retry_after.isdigit() and len(retry_after) <= 8
    return Answer(
        verdict=REJECTED,
        admitted=False,
        reason=f"rejected with HTTP status {reply.status} and no verdict",
        retry_after_s=min(float(retry_after), MAX_RETRY_AFTER_S) if is_number else None,
    )


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
    message = (
        f"{question}: the agent rejects the check as invalid (status {reply.status}): {detail}"
    )
    return InvalidRequest(message, status=reply.status, field=field)
