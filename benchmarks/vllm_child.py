"""The half of `vllm_cpu.py` that runs in vLLM's own environment: one JSON job on stdin, one JSON line of results out.

It imports nothing of this project: that environment holds vLLM's torch and transformers, not ours. Not called by hand.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

MARK = "RESULT "  # vLLM prints lines of its own to stdout


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Best wall and CPU seconds of `repeats` passes over each batch, with and without log-probabilities returned."""
    import torch
    import vllm
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=job["model"],
        skip_tokenizer_init=True,
        dtype=job["dtype"],
        enforce_eager=True,
        block_size=32,
        max_model_len=job["context"],
        max_num_seqs=max(job["batches"]),
        # The passes repeat their prompts, and each has to compute them: the other engine forgets between passes.
        enable_prefix_caching=False,
        # Scheduler and worker in this one process: the fastest here, and one thread is then really one.
        distributed_executor_backend="uni",
        seed=0,
    )
    rows = []
    for batch in job["batches"]:
        prompts = [{"prompt_token_ids": ids} for ids in job["prompts"][:batch]]
        row: dict[str, Any] = {"batch": batch}
        for name, logprobs in (("plain", None), ("logprobs", 0)):
            sampling = SamplingParams(
                temperature=1.0, max_tokens=job["new_tokens"], ignore_eos=True, detokenize=False, logprobs=logprobs
            )
            wall, cpu = [], []
            for _ in range(job["repeats"] + 1):
                began, cpu_began = time.perf_counter(), time.process_time()
                outputs = llm.generate(prompts, sampling, use_tqdm=False)
                wall.append(time.perf_counter() - began)
                cpu.append(time.process_time() - cpu_began)
            # The first pass is the warm-up.
            row[name] = {"seconds": min(wall[1:]), "cpu_seconds": min(cpu[1:])}
        row["tokens"] = sum(len(output.outputs[0].token_ids) for output in outputs)
        rows.append(row)
    return {"vllm": vllm.__version__, "torch": torch.__version__, "threads": torch.get_num_threads(), "rows": rows}


if __name__ == "__main__":
    print(MARK + json.dumps(measure(json.load(sys.stdin))), flush=True)
