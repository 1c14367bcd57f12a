"""Train the student from search trees: `python train_vllm.py --help`. All of it lives in
`alphazero_llm_trainer.learning` and `runs`.
"""

from alphazero_llm_trainer.cli.train import train_main

if __name__ == "__main__":
    raise SystemExit(train_main())
