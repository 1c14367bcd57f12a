"""What every engine promises (over torch, over the C kernels, over a server), and what the
in-process one adds.
"""

import asyncio
import copy
import dataclasses
import math
from contextlib import nullcontext, suppress
from functools import partial
from inspect import signature
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scripted import run
from support import (
    EOS,
    LINE_ENDS,
    STEP_ENDS,
    VOCABULARY,
    check_tree,
    library_logprobs,
    library_scores,
    tiny_engine,
    tiny_llama,
)

from alphazero_llm_trainer.config.sections import EngineConfig
from alphazero_llm_trainer.engine import inprocess, sampling
from alphazero_llm_trainer.engine.inprocess import InProcessEngine
from alphazero_llm_trainer.engine.library_forward import LibraryForward
from alphazero_llm_trainer.engine.native import NativeLlama, load_library
from alphazero_llm_trainer.engine.protocol import GenerateRequest
from alphazero_llm_trainer.engine.sampling import DeviceSampler, Sampler, Special
from alphazero_llm_trainer.engine.vllm_server import ServerEngine
from alphazero_llm_trainer.engine.without import Taken
from alphazero_llm_trainer.errors import EngineError

from completion_server import CompletionServer  # isort: skip

MODEL = tiny_llama()
PROMPT = (5, 6, 7, 8)
CLOSE = 5e-5  # nats: a hundred roundings of fp32 at 5 nats
HEAD = torch.randn(32, generator=torch.Generator().manual_seed(8)), 0.3
IN_PROCESS = [
    "native",
    "native, no memo",
    "transformers",
    "transformers, no memo",
    "transformers, no memo, as on CUDA",
]


class TwoWords:
    """A tokenizer of next to nothing: what a server and its client compare."""

    def __call__(self, text, add_special_tokens=False):
        return {"input_ids": [5, 6]}

    def decode(self, ids):
        return str(ids)


@pytest.fixture(scope="module")
def served():
    """The engine over a server that serves MODEL."""
    server = CompletionServer(
        lambda: SimpleNamespace(engine=tiny_engine(MODEL), tokenizer=TwoWords())
    )
    settings = EngineConfig(max_context=255, vllm={"base_url": server.url})
    ends = {"eos_id": EOS, "eos_ids": frozenset({EOS}), "step_ends": STEP_ENDS}
    engine = ServerEngine(MODEL, TwoWords(), settings=settings, adapter="lora", **ends)
    yield engine
    engine.close()
    server.close()


class Replayed:
    """FAKE graph: runs the step again, and leaves its results where a graph does. A test tool."""

    def __init__(self, decoder, size):
        self.decoder, self.size = decoder, size

    def replay(self):
        out = self.decoder._compute(self.size)
        for kept, made in zip(self.decoder.out, out, strict=True):
            kept.fill_(torch.nan)  # what is read after the next replay is no number
            kept[: self.size[0]] = made


def made(kind, request, monkeypatch):
    """An engine with one of the forwards, perhaps without stored next-token distributions."""
    kind, *more = kind.split(", ")
    if "no memo" in more:
        monkeypatch.setattr(inprocess, "MEMO_BYTES", 0)
    if kind == "native" and load_library() is None:
        pytest.skip("no C compiler here")
    engine = tiny_engine(MODEL, native="auto" if kind == "native" else "off")
    assert isinstance(engine.forward, NativeLlama if kind == "native" else LibraryForward)
    assert (engine.tree.next_logprobs is None) == ("no memo" in more)
    if "as on CUDA" in more:
        engine.sampler = engine.queue.sampler = DeviceSampler(load_library())
        monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
        decoder = engine.forward.decoder
        decoder.fixed = decoder.graphs_work = True
        decoder._without_waits, decoder._capture = decoder._compute, partial(Replayed, decoder)
    return engine


@pytest.fixture(params=IN_PROCESS)
def engine(request, monkeypatch):
    return made(request.param, request, monkeypatch)


@pytest.fixture(params=[*IN_PROCESS, "server"])
def every(request, monkeypatch):
    if request.param == "server":
        return request.getfixturevalue("served")
    return made(request.param, request, monkeypatch)


def generate(engine, *requests):
    return run(lambda: engine.generate(requests))


def score(engine, *pairs):
    return run(lambda: engine.score(pairs))


def sequences(groups):
    return [[(one.token_ids, one.finish) for one in group] for group in groups]


def assert_idle(engine):
    """Nothing is left over in an in-process engine: no rows, no locks, a sound tree."""
    if isinstance(engine, InProcessEngine):
        queue = engine.queue
        check_tree(engine.tree)
        assert not queue.live and not queue.waiting and not queue.walkers and not queue.pending
        assert [node for node, locks in enumerate(engine.tree.locks) if locks] == []


def random_prompt(rng, low=1, high=9):
    # Few tokens, so that prompts share prefixes.
    return tuple(rng.randrange(5, 8) for _ in range(rng.randint(low, high)))


def random_requests(seed, count):
    rng = Random(seed)
    return [
        GenerateRequest(
            random_prompt(rng),
            n=rng.randint(1, 3),
            max_new_tokens=rng.randint(1, 24),
            temperature=rng.choice([0.0, 0.7, 1.0, 1.5]),
            seed=rng.randrange(4),
            max_steps=rng.choice([None, 1, 2]),
        )
        for _ in range(count)
    ]


async def turns(count):
    """Let what else runs in the event loop go on."""
    for _ in range(count):
        await asyncio.sleep(0)


# -- the contract ----------------------------------------------------------------------------------


def test_sampled_and_scored_logprobs_are_the_librarys(every):
    requests, rng = random_requests(1, 12), Random(4)
    for request, group in zip(requests, generate(every, *requests), strict=True):
        assert len(group) == request.n
        for one in group:
            assert one.logprobs == pytest.approx(
                library_scores(MODEL, request.prompt_ids, one.token_ids), abs=2 * CLOSE
            )
    pairs = [(random_prompt(rng), random_prompt(rng, 1, 12)) for _ in range(20)]
    pairs += pairs[:5]  # the same pair twice in one call
    for pair, values in zip(pairs, score(every, *pairs), strict=True):
        assert values == pytest.approx(library_scores(MODEL, *pair), abs=CLOSE)
    assert score(every, (PROMPT, ())) == [[]]
    assert_idle(every)


def test_greedy_equals_the_librarys_generate(every):
    rng = Random(2)
    prompts = [random_prompt(rng) for _ in range(12)]
    groups = generate(
        every, *(GenerateRequest(p, max_new_tokens=40, temperature=0.0) for p in prompts)
    )
    for prompt, [one] in zip(prompts, groups, strict=True):
        ids = torch.tensor([prompt])
        found = MODEL.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=40,
            eos_token_id=EOS, pad_token_id=0,
        )  # fmt: skip
        assert one.token_ids == tuple(found[0, len(prompt) :].tolist())


def test_top_k_and_next_token_topk_are_the_models(every):
    [[one]] = generate(every, GenerateRequest(PROMPT, max_new_tokens=8, seed=3, top_k=5))
    prefixes = [PROMPT + one.token_ids[:i] for i in range(len(one.token_ids))]
    assert one.top is not None
    asked = [*prefixes, PROMPT[:2], (9,)]
    tops = [*one.top, *run(lambda: every.next_token_topk(asked, 4))]
    for prefix, pairs in zip([*prefixes, *asked], tops, strict=True):
        values, ids = library_logprobs(MODEL, prefix)[-1].topk(len(pairs))
        assert [token for token, _ in pairs] == ids.tolist()
        assert [value for _, value in pairs] == pytest.approx(values.tolist(), abs=CLOSE)
    assert generate(every, GenerateRequest(PROMPT, max_new_tokens=2))[0][0].top is None
    [everything] = run(lambda: every.next_token_topk([PROMPT], VOCABULARY + 5))
    assert math.fsum(math.exp(value) for _, value in everything) == pytest.approx(1.0, abs=CLOSE)
    assert len(everything) == VOCABULARY


def test_alone_batched_concurrent_and_repeated_are_the_same(every):
    requests = random_requests(5, 24)
    together = sequences(generate(every, *requests))
    assert sequences(generate(every, *requests)) == together

    async def later(i, request):
        await turns(i % 7)
        return await every.generate([request])

    async def concurrently():
        return await asyncio.gather(*(later(i, request) for i, request in enumerate(requests)))

    every.reset_prefix_cache()
    assert [sequences(groups)[0] for groups in run(concurrently)] == together
    for request, expected in zip(requests, together, strict=True):
        every.reset_prefix_cache()
        assert sequences(generate(every, request)) == [expected]
    assert_idle(every)


def test_samples_depend_on_seed_and_index_and_steps_cut_them(every):
    def drawn(n, seed, steps=None):
        return generate(
            every, GenerateRequest(PROMPT, n=n, max_new_tokens=30, seed=seed, max_steps=steps)
        )[0]

    free, seen = drawn(30, 1), set()
    assert len({one.token_ids for one in [*free, *drawn(4, 2)]}) >= 32
    assert sequences([drawn(3, 1)])[0] == sequences([free])[0][:3]
    for steps in (1, 2, 3):
        for one, whole in zip(drawn(30, 1, steps), free, strict=True):
            ids, ends = one.token_ids, sum(token in LINE_ENDS for token in one.token_ids)
            assert whole.token_ids[: len(ids)] == ids and len(one.logprobs) == len(ids) <= 30
            assert EOS not in ids[:-1] and (one.finish == "eos") == (ids[-1] == EOS)
            assert ends <= steps and (one.finish == "stop") == (ends == steps)
            seen.add(one.finish)
    assert seen == {"eos", "stop", "length"}


@pytest.mark.parametrize(
    "top_p, temperature", [(0.5, 1.0), (0.9, 1.5), (1.0, 1.5), (0.3, 0.5), (1e-9, 1.0)]
)
def test_a_nucleus_has_the_fewest_likeliest_tokens(every, top_p, temperature):
    logprobs = library_logprobs(MODEL, PROMPT)[-1].double()
    chances, order = torch.softmax(logprobs / temperature, dim=-1).sort(descending=True)
    size = next((n for n in range(1, VOCABULARY) if chances[:n].sum() >= top_p), VOCABULARY)
    nucleus, draws = order[:size].tolist(), 2000 if isinstance(every, InProcessEngine) else 60
    request = GenerateRequest(
        PROMPT, draws, max_new_tokens=1, temperature=temperature, seed=3, top_p=top_p
    )
    [group] = generate(every, request)
    counts = np.bincount([one.token_ids[0] for one in group], minlength=VOCABULARY)
    assert counts[nucleus].sum() == draws
    expected = (chances[:size] / chances[:size].sum()).numpy()
    assert counts[nucleus] / draws == pytest.approx(expected, abs=0.05 if draws == 2000 else 0.3)
    for one in group[:20]:  # of the whole distribution at temperature 1
        assert one.logprobs[0] == pytest.approx(float(logprobs[one.token_ids[0]]), abs=1e-4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt_ids": ()}, {"prompt_ids": (5,) * 256}, {"prompt_ids": (5, VOCABULARY)},
        {"prompt_ids": (5, -1)}, {"temperature": math.nan}, {"n": 0}, {"top_p": 0.0},
        {"top_p": 0.9, "without": (((5,), (-1.0,)),)},
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["native", "server"])
def test_impossible_requests_get_no_further(kind, wrong, request, monkeypatch):
    """The kernels would read past the embedding; and nothing is begun."""
    served = kind == "server"
    engine = request.getfixturevalue("served") if served else made(kind, request, monkeypatch)
    fine, calls = GenerateRequest(PROMPT, max_new_tokens=2), engine.cost.calls
    ways = [lambda: engine.generate([fine, dataclasses.replace(fine, **wrong)])]
    if "prompt_ids" in wrong:
        ids = wrong["prompt_ids"]
        ways.append(lambda: engine.score([(PROMPT, (5,)), (ids, (5,))]))
        ways.append(lambda: engine.next_token_topk([PROMPT, ids], 3))
        if not served and len(ids) < 256:  # a value follows a whole context
            engine.set_value(*HEAD)
            ways.append(lambda: engine.values([PROMPT, ids]))
    for way in ways:
        with pytest.raises(EngineError):
            run(way)
    assert engine.cost.calls == calls
    assert_idle(engine)


def test_cost_counts_calls_prompts_and_what_was_drawn(every):
    every.reset_prefix_cache()
    before, request = copy.copy(every.cost), GenerateRequest(PROMPT, n=8, max_new_tokens=30, seed=1)

    def spent():
        return [
            getattr(every.cost, name) - getattr(before, name)
            for name in ("calls", "sampled_tokens", "scored_tokens")
        ]

    [free] = generate(every, request)
    drawn = sum(len(one.token_ids) for one in free)
    assert spent() == [1, drawn, 0]
    score(every, (PROMPT, (5, 6)), (PROMPT, ()))
    assert spent() == [3, drawn, 2]
    [cut] = generate(every, dataclasses.replace(request, max_steps=2))
    kept = sum(len(one.token_ids) for one in cut)
    # A server draws what follows the second line all the same.
    paid = kept if isinstance(every, InProcessEngine) else drawn
    assert kept < drawn and spent()[1] == drawn + paid


def test_set_policy_takes_no_weights_under_way(every):
    async def both():
        asked = [GenerateRequest(PROMPT, n=64, max_new_tokens=200, temperature=3.0)]
        under_way = asyncio.ensure_future(every.generate(asked))
        await asyncio.sleep(0.01)
        with pytest.raises(EngineError, match="under way"):
            await asyncio.to_thread(every.set_policy, None, 3)
        under_way.cancel()

    asyncio.run(both())
    every.set_policy(None, 4)
    assert every.version == 4


def test_an_engine_without_a_value_head_says_so(every):
    with pytest.raises(EngineError, match="value head"):
        run(lambda: every.values([PROMPT]))
    every.set_value(None)
    if not isinstance(every, InProcessEngine):
        with pytest.raises(EngineError, match="value head"):
            every.set_value(torch.zeros(1))


# -- what is computed ------------------------------------------------------------------------------


def unique_prefixes(sequences):
    return len({ids[: i + 1] for ids in sequences for i in range(len(ids))})


def tiny_engine_result(request):
    [group] = sequences(generate(tiny_engine(MODEL), request))
    return group


def test_samples_share_their_prefix(engine):
    """Each distinct token that something follows is computed exactly once; a sample's last token
    never is.
    """
    [group] = generate(
        engine, GenerateRequest(PROMPT, n=40, max_new_tokens=12, temperature=0.8, seed=7)
    )
    inner = unique_prefixes([PROMPT + one.token_ids[:-1] for one in group])
    assert engine.stats.computed_tokens == inner
    # The first tokens did coincide: sharing was put to the test.
    assert inner < len(PROMPT) + sum(len(one.token_ids) - 1 for one in group)


def test_known_tokens_are_not_computed_again():
    engine = tiny_engine(MODEL)
    [[one]] = generate(engine, GenerateRequest(PROMPT, max_new_tokens=12, seed=9))
    computed = engine.stats.computed_tokens
    assert score(engine, (PROMPT, one.token_ids)) == [list(one.logprobs)]
    assert engine.stats.computed_tokens == computed
    # Going on from the middle computes what is new and nothing else.
    middle = PROMPT + one.token_ids[:-1]
    [[more]] = generate(engine, GenerateRequest(middle, max_new_tokens=5, seed=10))
    assert more.cached_tokens == len(middle)
    computed = unique_prefixes([middle + more.token_ids[:-1], middle])
    assert engine.stats.computed_tokens == computed
    # An unknown continuation of known tokens: its own tokens, and no distribution is asked for
    # again.
    score(engine, (PROMPT, (51, 52, 53)))
    assert engine.stats.computed_tokens <= computed + 4
    assert_idle(engine)


def small_engine(**more):
    """One with a cache of 128 tokens."""
    return tiny_engine(MODEL, max_context=32, cache_tokens=0, **more)


def long_requests(count, length, **more):
    """Of prompts that have little in common."""
    rng = Random(13)
    prompts = [tuple(rng.randrange(5, VOCABULARY) for _ in range(length)) for _ in range(count)]
    return [GenerateRequest(prompt, seed=i, **more) for i, prompt in enumerate(prompts)]


def test_eviction_changes_nothing():
    """A cache of 128 tokens serves 60 prompts of 18 distinct tokens and forgets the least recently
    used.
    """
    small = small_engine(max_batch=4)
    assert small.tree.capacity == 128
    requests = long_requests(60, 18, n=2, max_new_tokens=8)
    for start in range(0, 60, 2):
        both = requests[start : start + 2]
        found = sequences(generate(small, *both))
        assert found == [tiny_engine_result(request) for request in both]
        pair = (both[0].prompt_ids, found[0][0][0])
        assert score(small, pair)[0] == pytest.approx(library_scores(MODEL, *pair), abs=CLOSE)
        check_tree(small.tree)
    assert_idle(small)
    assert small.tree.count_used() <= 127
    for at, known in ((58, 18), (0, 0)):  # the newest is still known, the oldest is not
        [[one]] = generate(small, GenerateRequest(requests[at].prompt_ids, max_new_tokens=1))
        assert one.cached_tokens == known


# -- weights ---------------------------------------------------------------------------------------


def test_an_engine_at_rest_holds_no_cache_and_wakes_as_it_was(engine):
    requests = random_requests(3, 4)
    before, computed = generate(engine, *requests), engine.cost.prompt_tokens
    engine.sleep()
    assert engine.tree._states is None and engine.tree.count_used() == 0
    assert sequences(generate(engine, *requests)) == sequences(before)
    assert engine.cost.prompt_tokens == 2 * computed


def test_set_policy_forgets_and_changes_results():
    model, other = tiny_llama(), tiny_llama(seed=1)
    engine, request = tiny_engine(model), GenerateRequest(PROMPT, n=4, max_new_tokens=10, seed=1)
    before = generate(engine, request)
    engine.set_policy(other.state_dict(), version=3)
    assert engine.version == 3 and engine.tree.count_used() == 0
    after = generate(engine, request)
    assert after == generate(tiny_engine(other), request) != before
    # Changed in place, as a trainer does.
    model.load_state_dict(MODEL.state_dict())
    engine.set_policy(None, version=4)
    assert generate(engine, request) == before


# -- values ----------------------------------------------------------------------------------------


@torch.inference_mode()
def library_value(tokens):
    """sigmoid(w . h + b) at the last token, by the library's own forward."""
    hidden = MODEL.model(input_ids=torch.tensor([tokens])).last_hidden_state[0, -1]
    return float(torch.sigmoid(hidden @ HEAD[0] + HEAD[1]))


def test_a_known_nodes_value_costs_nothing(engine):
    engine.set_value(*HEAD)
    [[one]] = generate(engine, GenerateRequest(PROMPT, max_new_tokens=12, seed=9))
    computed, prompts = engine.stats.computed_tokens, engine.cost.prompt_tokens
    # The last token is never computed.
    states = [PROMPT[:2], *(PROMPT + one.token_ids[:i] for i in range(len(one.token_ids) + 1))]
    expected = pytest.approx([library_value(state) for state in states], abs=CLOSE)
    known = run(lambda: engine.values(states[:-1]))
    assert engine.stats.computed_tokens == computed and engine.cost.prompt_tokens == prompts
    assert [*known, *run(lambda: engine.values(states[-1:]))] == expected
    assert engine.stats.computed_tokens == computed + 1


# -- samples that are none of `without` ------------------------------------------------------------


def at(temperature, *ids):
    """Log-probabilities `[V]` after PROMPT and `ids` at a temperature."""
    return torch.log_softmax(
        library_logprobs(MODEL, (*PROMPT, *ids))[-1].double() / temperature, -1
    )


@pytest.mark.parametrize(
    "temperature", [1.5, *(pytest.param(at, marks=pytest.mark.slow) for at in (0.5, 1.0))]
)
def test_without_draws_from_what_the_policy_leaves(engine, temperature):
    """Pairs of tokens: frequencies over seeds are those of the policy at that temperature,
    renormalised.
    """
    rows, count = at(temperature), 3000
    first = rows.topk(3).indices.tolist()
    taken = {}  # pairs, and their log-probabilities
    for a in first:
        after = at(temperature, a)
        for b in after.topk(3 if temperature < 1 else 20).indices.tolist():
            taken[a, b] = float(rows[a]), float(after[b])
    mass = {pair: math.exp(sum(logprobs)) for pair, logprobs in taken.items()}
    asked = GenerateRequest(
        PROMPT, max_new_tokens=2, temperature=temperature, without=tuple(taken.items())
    )
    drawn = generate(engine, *(dataclasses.replace(asked, seed=seed) for seed in range(count)))
    pairs = [found.token_ids for [found] in drawn]
    assert not set(pairs) & set(taken)
    for a in first:
        left = math.exp(float(rows[a])) - sum(mass[pair] for pair in mass if pair[0] == a)
        share = sum(pair[0] == a for pair in pairs) / count
        assert share == pytest.approx(left / (1 - sum(mass.values())), abs=0.025)
    assert engine.cost.sampled_tokens == sum(map(len, pairs))
    assert_idle(engine)


def test_draws_on_a_device_and_in_c_are_the_hosts_in_any_batch(monkeypatch):
    rng, words, count = np.random.default_rng(7), 83, 3000
    table = torch.from_numpy(np.log(rng.dirichlet(np.full(words, 0.3), size=30) + 1e-12))
    table = table.bfloat16().float()  # many are equal
    table[3], table[3, [40, 50]] = -math.inf, 0.0
    rows, uniforms = rng.integers(0, 30, count).tolist(), rng.random(count).tolist()
    temperatures = rng.choice([0.0, 0.01, 0.7, 1.0, 2.0], count).tolist()
    special = {}
    for i in range(0, count, 2):
        a, b, c = table[rows[i]].topk(3).indices.tolist()
        # `a` is taken wholly, most of `b` is, and nothing of all others.
        taken = Taken.of((((a,), (-0.5,)), ((b, c), (-1.0, -0.1))))
        kinds = [{"taken": taken}, {"top_p": rng.uniform(0.05, 1)}, {}]
        kind = kinds[i % 3 if temperatures[i] else 1]
        special[i] = Special(tempered=(None, 0.6)[i % 4 // 2], **kind)
    nothing_left = Taken.of([((word,), (-5.0,)) for word in range(words)])
    temperatures[0], special[0] = 1.0, Special(taken=nothing_left)
    host, device, compiled = Sampler(None), DeviceSampler(None), Sampler(load_library())
    asked = table, rows, temperatures, uniforms, special
    right = host.draw(*asked)
    for sampler in (compiled, device):
        drawn = sampler.draw(*asked)
        # Where a number falls on a boundary, rounding decides.
        same = [i for i in range(count) if drawn.tokens[i] == right.tokens[i]]
        assert len(same) >= count - 2
        assert drawn.logprobs == [table[row, a] for row, a in zip(rows, drawn.tokens, strict=True)]
    assert drawn.tempered.keys() == right.tempered.keys()
    tempered = [i for i in right.tempered if i in set(same)]
    assert len(tempered) > count // 5
    for i in tempered:
        assert drawn.tempered[i] == pytest.approx(right.tempered[i])
    monkeypatch.setattr(sampling, "CHANCES_TILE", 7 * words)
    assert device.draw(*asked) == drawn
    for i in range(100):
        own = {0: special[i]} if i in special else {}
        [alone], _, _ = device.draw(table, [rows[i]], [temperatures[i]], [uniforms[i]], own)
        assert alone == drawn.tokens[i]
    for k in (1, 5, words, 200):
        for sampler in (compiled, device):
            assert sampler.top(table, range(30), k) == host.top(table, range(30), k)
    for seed, index, size in ((0, 0, 1), (2**63 - 1, 3, 8), (2**40 + 5, 200, 161), (7, 1, 4)):
        assert compiled.uniforms(seed, index, size) == host.uniforms(seed, index, size)


def test_samples_tell_their_log_probabilities_at_the_temperature_of_later_draws(
    engine,
):
    """Greedy ones too, and the sequence is the one that is drawn without that."""
    for temperature in (0.0, 0.7):
        asked = GenerateRequest(PROMPT, max_new_tokens=5, temperature=temperature, seed=4)
        [[plain]] = generate(engine, asked)
        [[told]] = generate(engine, dataclasses.replace(asked, tempered=0.7))
        assert plain.tempered is None and told.token_ids == plain.token_ids
        expected = [
            float(at(0.7, *told.token_ids[:i])[token]) for i, token in enumerate(told.token_ids)
        ]
        assert told.tempered == pytest.approx(expected, abs=1e-4)
    assert_idle(engine)


def test_where_nothing_is_left_samples_repeat():
    certain = ((7, 8), (math.log(0.5), 0.0)), ((9,), (math.log(0.4995),))
    assert Taken.of(certain) is None and Taken.of(()) is None
    found = Taken.of(certain[:1])
    assert found.share == pytest.approx(0.5) and found.after[7].share == 1.0
    table = np.full(12, -np.inf, dtype=np.float32)
    table[7] = 0.0
    assert found.draw(table, 1.0, 0.5) is None


# -- what breaks, ends early or is cancelled -------------------------------------------------------


@pytest.mark.parametrize("place", ["compute", "settle", "advance", "_emit", "child"])
@pytest.mark.parametrize("after", [0, 4])
def test_whatever_breaks_inside_a_step_nobody_waits_forever(place, after, monkeypatch):
    """An exception anywhere in the engine's step ends every waiting call with a result or an
    EngineError.
    """
    engine = tiny_engine(MODEL, max_batch=4)
    parts = [engine.forward, engine.queue, engine.tree]
    owner = next(part for part in parts if hasattr(part, place))
    real, step = getattr(owner, place), engine._step
    requests, calls, stepping = random_requests(22, 24), 0, False

    def broken(*args, **kwargs):
        nonlocal calls
        calls += stepping
        if stepping and calls == after + 1:
            raise RuntimeError("broken on purpose")
        return real(*args, **kwargs)

    def counted():
        nonlocal stepping
        stepping = True
        try:
            step()
        finally:
            stepping = False

    async def main():
        await asyncio.gather(*(engine.generate([request]) for request in requests[:3]))
        monkeypatch.setattr(owner, place, broken)
        monkeypatch.setattr(engine, "_step", counted)
        scored = [engine.score([((5, 6), (7, i, 9)), ((6, 5), (i, 5))]) for i in range(10, 16)]
        # Beside rows that are scored in one step, rows that draw (and may break) in the same one.
        drawn = [engine.generate([request]) for request in requests]
        return await asyncio.gather(scored[0], *drawn, *scored[1:], return_exceptions=True)

    found = run(main)
    assert calls > after, f"{place} was not reached {after + 1} times: the test tests nothing"
    errors = [got for got in found if isinstance(got, BaseException)]
    assert errors and {type(error) for error in errors} == {EngineError}
    for got in (found[0], *found[1 + len(requests) :]):
        if got not in errors:
            assert not any(math.isnan(value) for values in got for value in values)
    monkeypatch.undo()
    for request in requests[:4]:
        assert sequences(generate(engine, request))[0] == tiny_engine_result(request)
    assert_idle(engine)


def test_calls_wait_while_a_small_cache_is_full_of_others():
    """Twelve prompts of 20 tokens, a cache of 128."""
    engine, requests = small_engine(), long_requests(12, 20, n=4, max_new_tokens=11)

    async def main():
        jobs = [engine.generate([request]) for request in requests]
        jobs += [engine.score([(request.prompt_ids, (5, 6))]) for request in requests]
        leaving = asyncio.create_task(engine.generate(requests))
        waits = asyncio.gather(*jobs)
        await turns(20)
        leaving.cancel()
        return await waits

    found = run(main)
    for request, got, [values] in zip(requests, found, found[len(requests) :], strict=False):
        assert sequences(got)[0] == tiny_engine_result(request)
        expected = library_scores(MODEL, request.prompt_ids, (5, 6))
        assert values == pytest.approx(expected, abs=CLOSE)
    assert_idle(engine)


def test_a_call_too_large_for_the_cache_is_an_error_and_not_the_end():
    engine, [request] = small_engine(), long_requests(1, 20, max_new_tokens=11)
    with pytest.raises(EngineError, match=r"engine\.cache_tokens is 128"):
        generate(engine, dataclasses.replace(request, n=40, temperature=3.0))
    assert len(generate(engine, request)[0]) == 1
    assert_idle(engine)


@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_a_loop_that_ends_in_the_middle_leaves_a_working_engine(after):
    """asyncio.run cancels what is left when its main coroutine ends: Ctrl-C, an error, an early
    break.
    """
    engine, pairs = tiny_engine(MODEL), [(PROMPT, (50, 51)), (PROMPT, (52, 53))]
    requests = [GenerateRequest(PROMPT, n=2, max_new_tokens=30, seed=i) for i in range(3)]

    async def main():
        jobs = [engine.score(pairs), *(engine.generate([request] * 2) for request in requests)]
        tasks = [asyncio.create_task(job) for job in jobs]
        await turns(after)
        assert not all(task.done() for task in tasks)

    asyncio.run(main())
    engine.set_policy(None, version=1)  # nothing is under way any more
    assert score(engine, pairs[0])[0] == pytest.approx(library_scores(MODEL, *pairs[0]), abs=CLOSE)
    assert sequences(generate(engine, requests[0]))[0] == tiny_engine_result(requests[0])
    assert_idle(engine)


@pytest.mark.parametrize("memo", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_random_interleavings_never_hang_and_are_never_wrong(seed, memo, monkeypatch):
    """Many callers, many loops: generate, score (with duplicates), top-k, cancellations, long and
    short, one engine.
    """
    if not memo:
        monkeypatch.setattr(inprocess, "MEMO_BYTES", 0)
    rng = Random(seed)
    engine = tiny_engine(MODEL, max_batch=rng.choice([3, 16, 64]), cache_tokens=2048)
    requests = random_requests(100 + seed, 24)
    long = {"max_new_tokens": 170, "temperature": 1.5}  # while others come and go
    requests += [GenerateRequest(random_prompt(rng), seed=i, **long) for i in range(4)]
    drawn = [tiny_engine_result(request) for request in requests]
    pairs = [(random_prompt(rng), random_prompt(rng, 1, 12)) for _ in range(20)]
    for request, group in zip(requests, drawn, strict=True):
        if group[0][0]:
            pairs.append((request.prompt_ids, group[0][0]))
    scored = [library_scores(MODEL, *pair) for pair in pairs]

    best = [library_logprobs(MODEL, prompt)[-1].topk(3).indices.tolist() for prompt, _ in pairs]

    async def asked(rng):
        chosen = [rng.randrange(20) for _ in range(rng.randint(1, 4))]
        if rng.random() < 0.4:
            chosen.append(rng.randrange(len(requests)))
            found = sequences(await engine.generate([requests[i] for i in chosen]))
            assert found == [drawn[i] for i in chosen]
            return
        found = await engine.score([pairs[i] for i in chosen])
        for i, values in zip(chosen, found, strict=True):
            assert values == pytest.approx(scored[i], abs=1e-4)
        [top] = await engine.next_token_topk([pairs[chosen[0]][0]], 3)
        assert [token for token, _ in top] == best[chosen[0]]

    async def caller(rng):
        for _ in range(5):
            await turns(rng.randrange(4))
            task = asyncio.create_task(asked(rng))
            if rng.random() < 0.2:
                await turns(rng.randrange(6))
                task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def main():
        await asyncio.gather(*(caller(Random(f"{seed}/{round_}/{i}")) for i in range(16)))

    for round_ in range(3):
        run(main, 60)
    # Rows of cancelled callers are let go when the pump next runs.
    generate(engine, GenerateRequest((9, 9), max_new_tokens=2))
    assert_idle(engine)


@pytest.mark.parametrize(
    "way",
    [{"temperature": 0.0}, {"n": 40, "temperature": 1.5}, {"n": 40, "top_p": 0.8},
     {"n": 8, "top_k": 60}]
)  # fmt: skip
def test_tokens_that_the_tokenizer_does_not_have_are_never_drawn(engine, way):
    """An embedding has rows that fill it up; the other tokens' numbers stay the model's."""
    likely = library_logprobs(MODEL, PROMPT)[-1].argsort(descending=True).tolist()
    unknown = {token for token in likely[:20] if token != EOS}
    engine.unknown = torch.tensor([*unknown])
    [drawn] = generate(engine, GenerateRequest(PROMPT, max_new_tokens=6, seed=3, **way))
    for one in drawn:
        assert not unknown & {*one.token_ids}
        right = library_scores(MODEL, PROMPT, one.token_ids)
        assert one.logprobs == pytest.approx(right, abs=CLOSE)
        for top in one.top or ():
            assert not unknown & {token for token, value in top if value > -math.inf}
    pair = PROMPT, (min(unknown),)  # of a prompt that has one all the same
    assert score(engine, pair)[0] == pytest.approx(library_scores(MODEL, *pair), abs=CLOSE)


def test_the_cache_has_the_name_that_the_models_forward_gives_it(monkeypatch):
    """transformers 5.24 renames `past_key_values` to `cache`."""
    model, request = tiny_llama(), GenerateRequest(PROMPT, n=2, max_new_tokens=6, seed=3)
    backbone = type(model.base_model)
    forward, seen = backbone.forward, []
    old = "past_key_values" if "past_key_values" in signature(forward).parameters else "cache"

    def renamed(self, *args, cache=None, **more):
        seen.append(cache is not None)
        return forward(self, *args, **{old: cache}, **more)

    before = generate(tiny_engine(model, native="off"), request)
    monkeypatch.setattr(backbone, "forward", renamed)
    assert generate(tiny_engine(model, native="off"), request) == before
    assert seen and all(seen)
