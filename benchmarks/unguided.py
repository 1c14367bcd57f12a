"""AlphaZero's loop without its value in the search:
`--set train.method=benchmarks/unguided.py:UNGUIDED`.

The value is trained as in `alphazero`, and trees are searched under the source's rule alone. With
`search.select=best-first` they are the same trees under a constant value.
"""

from dataclasses import replace

from alphazero_llm_trainer.learning.methods.alphazero import ALPHAZERO

UNGUIDED = replace(ALPHAZERO, guided=False)
