"""A server that speaks what vLLM's speaks (completions of token ids, adapters by name), with the
in-process engine behind it.

A test tool: the model and its samples are real, the protocol is that part of vLLM's which the
client uses.
"""

import copy
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

from alphazero_llm_trainer.config.load import load_config
from alphazero_llm_trainer.engine.background import LoopThread
from alphazero_llm_trainer.engine.protocol import GenerateRequest
from alphazero_llm_trainer.policy.student import load_student, make_student

CONFIG = ["student=embedded", "engine.cache_tokens=40000", "rewards.use_student_model=false"]


class CompletionServer:
    """`url` serves a student (the shipped one) as "student"; `answered` counts completions by model
    name.
    """

    def __init__(self, make=lambda: load_student(load_config(overrides=CONFIG))):
        self.name, self.lock = "student", threading.Lock()
        self.thread = LoopThread("completions")
        self.students = {self.name: make()}
        self.answered = {}
        self.seeds = count()  # of draws that name none
        owner = self

        class Server(ThreadingHTTPServer):
            request_queue_size = 256  # a whole batch connects at once

            def handle_error(self, *_):
                """A client that was cancelled is no news."""

        class Handler(BaseHTTPRequestHandler):
            wbufsize = 1 << 16  # one packet an answer

            def do_GET(self):
                self.reply(*owner.get(self.path))

            def do_POST(self):
                sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.reply(*owner.post(self.path, sent))

            def reply(self, status, said):
                content = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        self.http = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        ).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()
        self.thread.close()

    def get(self, path):
        if path != "/v1/models":
            return (405, {}) if path == "/v1/load_lora_adapter" else (404, {})
        return 200, {
            "data": [
                {
                    "id": name,
                    "parent": None if name == self.name else self.name,
                    "max_model_len": 1024,
                }
                for name in self.students
            ]
        }

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

    def complete(self, student, sent):
        prompt = tuple(sent["prompt"])
        request = GenerateRequest(
            prompt,
            max_new_tokens=sent["max_tokens"],
            temperature=sent["temperature"],
            top_p=sent["top_p"],
            seed=sent.get("seed", 0),
            stop_ids=frozenset(sent["stop_token_ids"]),
            top_k=sent["logprobs"],
        )
        [[one]] = self.wait(student.engine.generate([request]))
        choice = {
            "token_ids": one.token_ids,
            "logprobs": {
                "token_logprobs": one.logprobs,
                "top_logprobs": [
                    {f"token_id:{token}": value for token, value in row} for row in one.top or ()
                ],
            },
        }
        if "prompt_logprobs" in sent:
            [scores] = self.wait(student.engine.score([(prompt[:1], prompt[1:])]))
            rows = [
                {str(token): {"logprob": value}}
                for token, value in zip(prompt[1:], scores, strict=True)
            ]
            choice["prompt_logprobs"] = [None, *rows]
        with self.lock:
            self.answered[sent["model"]] = self.answered.get(sent["model"], 0) + 1
        return {
            "model": sent["model"],
            "choices": [choice],
            "usage": {"prompt_tokens_details": {"cached_tokens": one.cached_tokens}},
        }

    def generate(self, student, sent):
        """What verifiers' training client asks for."""
        asked, prompt = sent["sampling_params"], tuple(sent["token_ids"])
        request = GenerateRequest(
            prompt,
            max_new_tokens=asked.get("max_tokens", 1024 - len(prompt)),
            temperature=asked["temperature"],
            seed=next(self.seeds),
            stop_ids=frozenset(asked["stop_token_ids"]),
        )
        [[one]] = self.wait(student.engine.generate([request]))
        logged = [
            {"token": f"token_id:{token}", "logprob": value}
            for token, value in zip(one.token_ids, one.logprobs, strict=True)
        ]
        choice = {
            "token_ids": one.token_ids,
            "logprobs": {"content": logged},
            "finish_reason": "length" if one.finish == "length" else "stop",
        }
        return {"choices": [choice]}

    def wait(self, work):
        return self.thread.wait(work)
