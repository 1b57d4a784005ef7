"""Write the word problems of this example: python generate.py

Every answer has the same format, a line per calculation and then the result:

    3 × 4 = 12
    12 - 5 = 7
    Answer: 7

The generated files are committed; a test regenerates and compares them.
"""

import json
import random
from pathlib import Path

NAMES = ("Mia", "Ben", "Lena", "Omar", "Zoe", "Ivan", "Aisha", "Tom", "Nina", "Raj", "Emma", "Luis")
THINGS = (
    "apples",
    "marbles",
    "stickers",
    "books",
    "coins",
    "pencils",
    "shells",
    "cards",
    "stamps",
    "cookies",
)
CONTAINERS = ("boxes", "bags", "baskets", "drawers")

Problem = tuple[str, str]


def addition(rng: random.Random) -> Problem:
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    have, more = rng.randint(2, 40), rng.randint(2, 40)
    verb = rng.choice(("buys", "finds", "is given", "wins"))
    question = f"{name} has {have} {thing} and {verb} {more} more. How many {thing} does {name} have now?"
    return question, f"{have} + {more} = {have + more}\nAnswer: {have + more}"


def subtraction(rng: random.Random) -> Problem:
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    have = rng.randint(10, 60)
    less = rng.randint(2, have - 2)
    verb = rng.choice(("gives away", "loses", "sells", "lends out"))
    question = f"{name} has {have} {thing} and {verb} {less} of them. How many {thing} are left?"
    return question, f"{have} - {less} = {have - less}\nAnswer: {have - less}"


def multiplication(rng: random.Random) -> Problem:
    name, thing, container = rng.choice(NAMES), rng.choice(THINGS), rng.choice(CONTAINERS)
    count, each = rng.randint(2, 9), rng.randint(2, 9)
    question = f"{name} has {count} {container} with {each} {thing} in each. How many {thing} does {name} have?"
    return question, f"{count} × {each} = {count * each}\nAnswer: {count * each}"


def multiply_then_change(rng: random.Random) -> Problem:
    name, thing, container = rng.choice(NAMES), rng.choice(THINGS), rng.choice(CONTAINERS)
    count, each = rng.randint(2, 9), rng.randint(2, 9)
    product = count * each
    first = f"{name} has {count} {container} with {each} {thing} in each"
    if rng.random() < 0.5:
        more = rng.randint(2, 20)
        total = product + more
        question = f"{first} and buys {more} more. How many {thing} does {name} have now?"
        return question, f"{count} × {each} = {product}\n{product} + {more} = {total}\nAnswer: {total}"
    less = rng.randint(1, product - 1)
    total = product - less
    question = f"{first} and gives away {less} of them. How many {thing} are left?"
    return question, f"{count} × {each} = {product}\n{product} - {less} = {total}\nAnswer: {total}"


def add_then_take(rng: random.Random) -> Problem:
    name, thing = rng.choice(NAMES), rng.choice(THINGS)
    have, more = rng.randint(2, 30), rng.randint(2, 30)
    total = have + more
    less = rng.randint(1, total - 1)
    question = (
        f"{name} has {have} {thing}, finds {more} more, and then loses {less}. "
        f"How many {thing} does {name} have in the end?"
    )
    left = total - less
    return question, f"{have} + {more} = {total}\n{total} - {less} = {left}\nAnswer: {left}"


ONE_STEP = (addition, subtraction, multiplication)
TWO_STEPS = (multiply_then_change, add_then_take)


def distinct(makers: tuple, count: int, rng: random.Random, taken: set[str]) -> list[dict[str, str]]:
    """`count` problems whose questions are not in `taken`; adds them to `taken`."""
    rows: list[dict[str, str]] = []
    while len(rows) < count:
        question, answer = rng.choice(makers)(rng)
        if question not in taken:
            taken.add(question)
            rows.append({"prompt": question, "completion": answer})
    return rows


def generate(seed: int = 7) -> dict[str, list[dict[str, str]]]:
    """All files of the example, by name; no question is in two of them."""
    rng, taken = random.Random(seed), set()
    return {
        "held_out.jsonl": distinct(ONE_STEP, 60, rng, taken) + distinct(TWO_STEPS, 40, rng, taken),
        "one_step.jsonl": distinct(ONE_STEP, 1000, rng, taken),
        "two_steps.jsonl": distinct(TWO_STEPS, 1000, rng, taken),
        "practice.jsonl": distinct(ONE_STEP, 400, rng, taken) + distinct(TWO_STEPS, 1600, rng, taken),
    }


if __name__ == "__main__":
    for name, rows in generate().items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        Path(__file__).with_name(name).write_text(lines, encoding="utf-8")
        print(f"{name}: {len(rows)} rows")
