"""Random Rush Hour boards for tests."""

from hypothesis import strategies as st

SIZE = 5


@st.composite
def board_texts(draw: st.DrawFn) -> str:
    """Boards of 5 × 5 cells on which A still has a way to go; some of them cannot be solved."""
    cells = [["o"] * SIZE for _ in range(SIZE)]
    row, column = draw(st.integers(0, SIZE - 1)), draw(st.integers(0, SIZE - 3))
    cells[row][column : column + 2] = "AA"
    names = iter("BCDEFGHIJ")
    for down, first, line, length in draw(
        st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 4), st.integers(2, 3)), max_size=9)
    ):
        where = [(first + step, line) if down else (line, first + step) for step in range(length)]
        if all(y < SIZE and x < SIZE and cells[y][x] == "o" for y, x in where):
            name = next(names)
            for y, x in where:
                cells[y][x] = name
    return "".join(map("".join, cells))
