"""Reasoning steps out of an engine: sample continuations, cut them at line ends, take in other
people's text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..engine.protocol import Generated, PaidContinuations, StepPolicy, Wanted
from ..grading.answers import is_final
from ..types import Continuation, Cost, Problem, Step, Steps, TokenIds, ids_of, text_of
from .chat import Prompts

if TYPE_CHECKING:
    from .student import Student


def drawing_cost(prefix: TokenIds, drawn: Sequence[Generated]) -> Cost:
    """What one request's samples after `prefix` cost."""
    cached, sampled = drawn[0].cached_tokens, sum(len(sample.token_ids) for sample in drawn)
    return Cost(
        prompt_tokens=len(prefix) - cached, cached_tokens=cached, sampled_tokens=sampled, calls=1
    )


class EngineSteps(Prompts, StepPolicy):
    """Step proposals of a student's engine. `Cost` of every call is returned with its result.

    Args:
        temperature: of the samples.
    """

    def __init__(self, student: Student, temperature: float) -> None:
        super().__init__(student)
        self.student, self.temperature = student, temperature
        self.lead = student.lead()  # once: it renders the chat template

    async def draw(self, problem: Problem, steps: Steps, wanted: Wanted) -> PaidContinuations:
        """Continuations by the engine: each is cut into steps where `step_ends` says."""
        prefix = self.prompt_ids(problem) + ids_of(steps)
        request = wanted.request_after(prefix, self.temperature, wanted.limits.steps)
        [generated] = await self.student.engine.generate([request])
        return [self.cut(sample, steps) for sample in generated], drawing_cost(prefix, generated)

    def cut(self, generated: Generated, before: Steps = ()) -> Continuation:
        """A sampled sequence after the steps `before`, as steps. Whatever follows the final-answer
        line is not part of the response. Where the prompt opened thinking the first step's text
        says so.
        """
        ids, steps, start = generated.token_ids, [], 0
        ends = self.student.engine.step_ends
        lead, so_far = "" if before else self.lead, text_of(before)
        goes_on = generated.finish != "eos" and not ends.whole(ids)  # the last step
        parts, known = ends.parts(ids), ids_of(before)
        for end, part in zip(parts, self.student.decode_parts(ids, parts, known), strict=True):
            text = lead + part
            steps.append(Step(ids[start:end], generated.logprobs[start:end], text))
            start, lead = end, ""
            if is_final(text, so_far):
                break
            so_far += text
        read = start == len(ids)
        ended = generated.finish == "eos" and read
        tempered = None if generated.tempered is None else generated.tempered[:start]
        return Continuation(tuple(steps), ended, cut=read and goes_on, tempered=tempered)

    async def read_step(
        self, problem: Problem, steps: Steps, text: str, ended: bool
    ) -> tuple[Step, Cost]:
        """The text tokenised once and scored under the student (its snapshot at ingest)."""
        before, student = ids_of(steps), self.student
        # A line that spells an end token or a chat's marks has none of them.
        special = set(student.tokenizer.all_special_ids)
        ids = [token for token in student.encode_part(text, before) if token not in special]
        if ended:
            ids.append(student.engine.eos_id)
        prefix = self.prompt_ids(problem) + before
        [logprobs] = await student.engine.score([(prefix, tuple(ids))])
        lead = "" if steps else self.lead
        step = Step(tuple(ids), tuple(logprobs), lead + student.decode_part(ids, before))
        return step, Cost(scored_tokens=len(ids), calls=1)
