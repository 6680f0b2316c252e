"""Which tensor degrees leave the blocks of AdamW8bit's moments whole.

Its moments are kept in blocks along the last dim of each weight, so a cut over that dim must fall between blocks. Only
tensor parallelism makes one. The planner and the trainer decide by the same table; standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

NAME = "AdamW8bit"
BLOCK = 256  # elements that share a scale
SMALLEST = 4096  # elements of a weight whose moments are kept in 8 bits


@dataclass(frozen=True)
class Row:
    """The last dim, of `length`, of a weight that tensor parallelism cuts there."""

    what: str
    length: int

    def whole_under(self, tensor: int) -> bool:
        """Whether each of `tensor` parts is whole blocks."""
        return tensor == 1 or self.length % (tensor * BLOCK) == 0

    def problem(self, tensor: int) -> str:
        """The equation that does not come out even."""
        part = self.length / tensor
        return (
            f"{NAME} keeps its moments in blocks of {BLOCK} along each row, and tensor {tensor} would cut one: "
            f"{self.what} {self.length} / {tensor} = {part:g}, / {BLOCK} = {part / BLOCK:.2f} blocks"
        )


def rows_cut_by_tensor(model_type: str, *, hidden: int, attention: int, intermediate: int) -> tuple[Row, ...]:
    """`attention`: width of all heads. Llama's output and down projections see some of the inputs, which come last;
    GPT-2 stores its matrices the other way round, and queries, keys and values as one.
    """
    matrices = (3 if model_type == "gpt2" else 1) * hidden * attention
    rows = (
        (Row("heads x head size", attention), matrices),
        (Row("intermediate_size", intermediate), hidden * intermediate),
    )
    return tuple(row for row, elements in rows if elements >= SMALLEST)
