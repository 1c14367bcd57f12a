"""What chat models are told before a word problem."""

SYSTEM_PROMPT = (
    "Solve the word problem step by step. Write one short step a line, each with its calculation, for example "
    "`16 - 3 = 13`. Write no headings and no lists. End with one line that holds only `#### N`, where N is the final "
    "answer as a plain number without units."
)
