"""How much memory the training of a value or a process reward model takes: `train.memory`'s arithmetic, for a judge.

The phases are those of the commands `value` and `prm`: the student is loaded, searches, and rests while the judge is
trained. In a loop they come one after the other, each with a student of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ..config.load import Config
from ..config.sections import ModelShape, StudentModel
from ..config.train import PrmConfig, ValueConfig
from .memory import PHASES, PROMPT, RANK_COPIES, Forecast, Part, rows_of_a_forward, square_bytes

Judge = Literal["value", "prm"]

EXTRA_LAYERS = 2  # of a judge that is trained whole, where its extra_layers is null
FEATURE_COPIES = 3  # of the states that a head is fitted to: as read, joined, standardised


class JudgeForecast(Forecast):
    """The parts of `value` and of `prm`. `tree` is tokens of a question's trees in one sequence, at most what they sample.

    Without `searches` the trees are there already, as a loop's are.
    """

    def __init__(
        self,
        judge: Judge,
        config: Config,
        spec: StudentModel,
        shape: ModelShape,
        device: str,
        prompt: int = PROMPT,
        memory: int | None = None,
        tree: int | None = None,
        searches: bool = True,
    ) -> None:
        settings: ValueConfig | PrmConfig = config.train.value if judge == "value" else config.train.prm
        self.judge, self.settings, self.searches = judge, settings, searches
        collect = settings.collect
        searched = {
            "method": "grpo",
            "groups": "tree",
            "samples": collect.samples,
            "eval_size": 0,
            "validation_size": 0,
            "grpo": config.train.grpo.model_copy(update={"credit": "group"}),  # nothing is trained with a PRM's credit
        }
        graded = {"use_student_model": False}  # trees are graded by correctness alone
        config = config.model_copy(
            update={
                "train": config.train.model_copy(update=searched),
                "rewards": config.rewards.model_copy(update=graded),
            }
        )
        super().__init__(config, spec, shape, device, prompt, memory)
        most = self.prompt + collect.iterations * collect.samples * config.search.max_tokens
        if isinstance(settings, PrmConfig) and settings.trainer == "trl":
            most = 2 * self.length  # a pair of whole sequences
        self.tree = most if tree is None else tree

    @property
    def head_alone(self) -> bool:
        """Whether it is a probe of the policy's own states: no network is trained."""
        return self.settings.kind == "head"

    @property
    def copies(self) -> int:
        """Judges in memory at once."""
        return 3 if self.settings.kind == "all" else 1

    @property
    def extra_layers(self) -> int:
        """Layers on top of the policy's."""
        if self.settings.extra_layers is not None:
            return self.settings.extra_layers
        return 0 if self.lora or self.settings.kind == "implicit" else EXTRA_LAYERS

    @property
    def whole(self) -> int:
        """Parameters of the judge: the policy's, layers on top, and an output layer where it computes logits."""
        counts, shape = self.counts, self.shape
        layer = counts.linear // shape.layers + 2 * shape.hidden
        untied = 0 if shape.tied or self.judge == "prm" else shape.vocabulary * shape.hidden
        return counts.whole - untied + self.extra_layers * layer

    @property
    def trained_parameters(self) -> tuple[int, int]:
        """Parameters that are trained."""
        if self.head_alone:
            return 0, 0
        return (self.counts.adapters if self.lora else self.whole), 0

    @property
    def words(self) -> int:
        """The vocabulary, where every token's logits are computed."""
        scored = isinstance(self.settings, PrmConfig) and (
            self.settings.kind in ("implicit", "all") or self.settings.logprob
        )
        return self.shape.vocabulary if scored else 0

    @property
    def micro_batch(self) -> int:
        """Questions of one forward."""
        settings, shape = self.settings, self.shape
        if settings.micro_batch is not None:
            return min(settings.micro_batch, settings.batch_size)
        layers = shape.layers + self.extra_layers
        sizes = (layers, shape.hidden, shape.intermediate, self.words, square_bytes(settings))
        return rows_of_a_forward(settings.batch_size, self.tree, *sizes)

    def engines(self, total: int) -> list[Part]:
        """The student's engine; where nothing is searched, as it was loaded."""
        parts = super().engines(total)
        if self.searches:
            return parts
        return [replace(part, name=f"engine: {part.name}", phases=PHASES) for part in parts if "load" in part.phases]

    def training(self) -> list[Part]:
        """The judge itself, its optimiser's states, and the best weights so far."""
        count, _ = self.trained_parameters
        parts: list[Part] = []
        if not count:
            return parts
        if not self.quantised:
            what = f"{self.copies} x {self.whole / 1e6:,.0f} M parameters x {self.width} B"
            parts.append(Part("judge", what, self.copies * self.whole * self.width, ("train",)))
        if self.lora:
            what = f"{self.copies} x {count / 1e6:,.1f} M x {self.trained} B"
            parts.append(Part("adapters", what, self.copies * count * self.trained, ("train",)))
        what = f"two moments, the best weights so far: {count / 1e6:,.1f} M x 3 x {self.trained} B"
        return [*parts, Part("optimiser", what, 3 * count * self.trained, ("train",))]

    def step(self) -> list[Part]:
        """Activations of one forward over whole trees, what is computed of its outputs, and gradients."""
        shape, size = self.shape, self.micro_batch
        tokens, layers = size * self.tree, shape.layers + self.extra_layers
        what = f"{size} x trees of at most {self.tree:,} tokens"
        mask = size * self.tree**2 * self.width
        if self.head_alone:
            return self.fit(tokens, mask, what)
        one: float = tokens * self.layer_bytes()
        if self.config.train.recomputes(self.cuda, self.quantised):
            kept = layers * tokens * shape.hidden * self.width + one
        else:
            kept = layers * one
        kept += tokens * shape.hidden * 2 * 4 + mask
        if isinstance(self.settings, ValueConfig):
            copies = RANK_COPIES if self.settings.rank_weight else 0
            output = copies * size * self.tree**2 * 4
            how = f"ranking: {copies} x {size} x {self.tree:,}^2 x 4 B"
        else:
            word = 2 * self.width + 8  # logits and their gradient, as computed and in fp32
            output = tokens * self.words * word
            how = f"logits of {tokens:,} tokens x {self.words:,} words x {word} B"
        gradients = self.trained_parameters[0] * self.trained
        if kept + output >= gradients + one:
            return [Part("activations", what, kept, ("train",)), Part("output layer", how, output, ("train",))]
        formula = f"{self.trained_parameters[0] / 1e6:,.1f} M x {self.trained} B, one layer whole"
        return [Part("gradients", formula, gradients + one, ("train",))]

    def fit(self, tokens: int, mask: int, what: str) -> list[Part]:
        """Reading the policy's states without a backward pass, `tokens` a forward; a head is fitted to them on the CPU."""
        shape = self.shape
        own = tokens * (4 * shape.hidden + 3 * shape.intermediate) * self.width + mask
        parts = [Part("activations", what, own, ("train",))]
        if not self.cuda:
            states = self.settings.collect.questions * self.tree
            formula = f"{states:,} at most x {shape.hidden} x {FEATURE_COPIES} x 4 B"
            parts.append(Part("states", formula, states * shape.hidden * FEATURE_COPIES * 4, ("train",)))
        return parts
