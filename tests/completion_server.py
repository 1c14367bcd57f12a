"""A server that speaks what vLLM's speaks (completions of token ids, adapters by name), with the
in-process engine behind it.

A test tool: the model and its samples are real, the protocol is that part of vLLM's which the
client uses.
"""

import asyncio
import copy
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from aiohttp import web
from fault_server import FakeServer

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.engine.protocol import GenerateRequest
from alphazero_llm_trainer.policy.student import load_student, make_student

CONFIG = ["student=embedded", "engine.cache_tokens=40000", "rewards.use_student_model=false"]


class CompletionServer(FakeServer):
    """`url` serves a student (the shipped one) as "student"; `answered` counts completions by model
    name.
    """

    name, route = "student", "/{path:.*}"

    def __init__(self, make=lambda: load_student(load_config(overrides=CONFIG))):
        self.students, self.answered = {self.name: make()}, Counter()
        self.seeds = count()  # of draws that name none
        self.pool = ThreadPoolExecutor(64)
        self.url = self.__enter__()
        self.close, self.wait = self.__exit__, self.thread.wait

    async def respond(self, request):
        if request.method == "GET":
            status, said = self.get(request.path)
        else:
            sent = await request.json()
            loop = asyncio.get_running_loop()
            status, said = await loop.run_in_executor(self.pool, self.post, request.path, sent)
        return web.json_response(said, status=status)

    def get(self, path):
        if path != "/v1/models":
            return (405, {}) if path == "/v1/load_lora_adapter" else (404, {})
        parents = {name: None if name == self.name else self.name for name in self.students}
        cards = [{"id": one, "parent": of, "max_model_len": 1024} for one, of in parents.items()]
        return 200, {"data": cards}

    def post(self, path, sent):
        base = self.students[self.name]
        if path == "/tokenize":
            ids = base.tokenizer(sent["prompt"], add_special_tokens=False)["input_ids"]
            return 200, {"tokens": ids, "max_model_len": 1024}
        if path == "/detokenize":
            return 200, {"prompt": base.tokenizer.decode(sent["tokens"])}
        if path == "/v1/unload_lora_adapter":
            return 200, self.students.pop(sent["lora_name"]) and {}
        if path == "/v1/load_lora_adapter":
            model = copy.deepcopy(base.model)
            model.load_adapter(sent["lora_path"])
            self.students[sent["lora_name"]] = make_student(
                "adapted", model, base.tokenizer, base.spec, load_config(overrides=CONFIG), None
            )
            return 200, {}
        student = self.students.get(sent["model"])
        if student is None:
            return 404, {"error": {"message": f"The model {sent['model']} does not exist."}}
        if path == "/inference/v1/generate":
            return 200, self.generate(student, sent)
        return 200, self.complete(student, sent)

    def drawn(self, student, prompt, asked, **more):
        stops = frozenset(asked["stop_token_ids"])
        warmth = asked["temperature"]
        request = GenerateRequest(prompt, temperature=warmth, stop_ids=stops, **more)
        [[one]] = self.wait(student.engine.generate([request]))
        return one

    def complete(self, student, sent):
        prompt, seed = tuple(sent["prompt"]), sent.get("seed", 0)
        shape = {"max_new_tokens": sent["max_tokens"], "top_k": sent["logprobs"]}
        one = self.drawn(student, prompt, sent, top_p=sent["top_p"], seed=seed, **shape)
        top = [{f"token_id:{token}": value for token, value in row} for row in one.top or ()]
        logprobs = {"token_logprobs": one.logprobs, "top_logprobs": top}
        choice = {"token_ids": one.token_ids, "logprobs": logprobs}
        if "prompt_logprobs" in sent:
            [scores] = self.wait(student.engine.score([(prompt[:1], prompt[1:])]))
            pairs = zip(prompt[1:], scores, strict=True)
            rows = [{str(token): {"logprob": value}} for token, value in pairs]
            choice["prompt_logprobs"] = [None, *rows]
        self.answered[sent["model"]] += 1
        usage = {"prompt_tokens_details": {"cached_tokens": one.cached_tokens}}
        return {"model": sent["model"], "choices": [choice], "usage": usage}

    def generate(self, student, sent):
        """What verifiers' training client asks for."""
        asked, prompt = sent["sampling_params"], tuple(sent["token_ids"])
        most = asked.get("max_tokens", 1024 - len(prompt))
        one = self.drawn(student, prompt, asked, max_new_tokens=most, seed=next(self.seeds))
        pairs = zip(one.token_ids, one.logprobs, strict=True)
        logged = [{"token": f"token_id:{token}", "logprob": value} for token, value in pairs]
        finish = "length" if one.finish == "length" else "stop"
        choice = {"token_ids": one.token_ids, "finish_reason": finish}
        return {"choices": [choice | {"logprobs": {"content": logged}}]}
