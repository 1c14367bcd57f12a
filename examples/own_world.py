"""An own world: a class whose public methods are the tools.
`uv run alphazero-llm-trainer search --source examples/own_world.py:World --model MODEL`
"""


class World:
    """A number is hidden in a row of boxes."""

    @staticmethod
    def rows():
        return [{"question": f"Find {n}. Boxes: 5.", "goal": n} for n in range(1, 200)]

    def reset(self, goal: int) -> None:
        self.boxes, self.found = [goal + shift for shift in (2, 4, 0, 1, 3)], False
        self.goal = goal

    def look(self, box: int) -> str:
        """Look into a box.

        Args:
            box: its number, from 1 on.
        """
        self.found = self.boxes[box - 1] == self.goal
        return str(self.boxes[box - 1])

    def reward(self) -> float:
        return float(self.found)
