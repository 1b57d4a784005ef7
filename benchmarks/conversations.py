"""Conversations to train on, generated from templates: word problems as long as those in grade-school data sets.

A problem describes how a stock of things changes from day to day, and its answer works out each change. The same
arguments give the same rows.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

NAMES = ("Amara", "Boris", "Chloe", "Dmitri", "Elena", "Farid", "Grace", "Hugo", "Ines", "Jamal", "Keiko", "Liam")
PLACES = ("bakery", "bookshop", "garden centre", "toy shop", "library", "workshop", "school kitchen", "market stall")
THINGS = ("rolls", "notebooks", "seedlings", "marbles", "candles", "apples", "pencils", "postcards", "lanterns")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
TOPICS = ("a river", "a lighthouse", "a market", "a storm", "a library", "a train", "a garden", "a mountain")


@dataclass(frozen=True)
class Change:
    """One day's event: its sentence in the question, its step in the answer, and the change in the stock."""

    told: str
    worked: str
    amount: int


def problems(count: int, seed: int = 0, *, short: bool = False) -> list[dict[str, Any]]:
    """Rows with `messages`: questions of about 45–110 tokens, answers of about 60–200; `short` gives the shortest."""
    draw = random.Random(seed)
    days = range(1, 2 if short else 5)
    rows = []
    for _ in range(count):
        question, answer, _ = problem(draw, draw.choice(days))
        rows.append(conversation(question, answer))
    return rows


def pairs(count: int, seed: int = 0, *, short: bool = False) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows with a better answer, and rows with the same prompts and a worse answer.

    Prompts have about 100–250 tokens and answers about 150–450; with `short`, about 80 and 60.
    """
    draw = random.Random(seed)
    days = range(1, 2) if short else range(4, 10)
    better, worse = [], []
    for _ in range(count):
        question, answer, bad = problem(draw, draw.choice(days))
        question += " Explain every step in a full sentence, so that a pupil of ten years can follow you."
        better.append(conversation(question, answer))
        worse.append(conversation(question, bad))
    return better, worse


def prompts(count: int, seed: int = 0) -> list[str]:
    """Requests of mixed length, from about 20 to about 300 tokens, in random order."""
    draw = random.Random(seed)
    stories = stories_about(500 + 10 * number for number in range(count))
    return [problem(draw, draw.randrange(1, 12))[0] if draw.random() < 0.6 else next(stories) for _ in range(count)]


def stories_about(words: Iterable[int]) -> Iterator[str]:
    """Requests for long texts, one for each word count, cycling through the topics."""
    for place, count in enumerate(words):
        yield f"Write a long story, at least {count} words, about {TOPICS[place % len(TOPICS)]}."


def conversation(question: str, answer: str) -> dict[str, Any]:
    """A single-turn row."""
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def problem(draw: random.Random, days: int) -> tuple[str, str, str]:
    """A question about `days` changes, its answer, and a careless answer that guesses some of them wrong."""
    name, place, things = draw.choice(NAMES), draw.choice(PLACES), draw.choice(THINGS)
    total = guessed = draw.randrange(200, 900)
    told = [f"{name} runs a small {place} and begins with {total} {things} in the store room."]
    worked, careless = [f"At first there are {total} {things}."], [f"We know that {name} has {total} {things}."]
    for number in range(days):
        day = DAYS[number % len(DAYS)] if number < len(DAYS) else f"the {DAYS[number % len(DAYS)]} after"
        change = draw.choice((delivery, sale, loss))(draw, name, things, day, total)
        slip = draw.choice((0, 0, 10, -10))
        worked.append(f"{change.worked} {total} {change.amount:+d} = {total + change.amount}.")
        careless.append(
            f"On {day} something changes, I think by {change.amount + slip}, which makes "
            f"{guessed + change.amount + slip} {things} or so, if I read the question the right way."
        )
        told.append(change.told)
        total, guessed = total + change.amount, guessed + change.amount + slip
    told.append(f"How many {things} does {name} have in the end?")
    worked.append(f"So in the end {name} has {total} {things}.\n#### {total}")
    careless.append(f"That should be about {guessed} {things}.\n#### {guessed}")
    return " ".join(told), "\n".join(worked), "\n".join(careless)


def delivery(draw: random.Random, name: str, things: str, day: str, total: int) -> Change:
    """Boxes arrive."""
    boxes, each = draw.randrange(3, 30), draw.randrange(4, 40)
    return Change(
        f"On {day} a driver brings {boxes} boxes with {each} {things} in each of them.",
        f"The {boxes} boxes that come on {day} hold {boxes} * {each} = {boxes * each} {things}, which are added:",
        boxes * each,
    )


def sale(draw: random.Random, name: str, things: str, day: str, total: int) -> Change:
    """Some things are sold."""
    customers, each = draw.randrange(2, 12), draw.randrange(1, 9)
    return Change(
        f"On {day} {customers} customers come in, and each of them buys {each} {things}.",
        f"The {customers} customers of {day} buy {customers} * {each} = {customers * each} {things}, which are gone:",
        -customers * each,
    )


def loss(draw: random.Random, name: str, things: str, day: str, total: int) -> Change:
    """A share is given away."""
    share = draw.choice((4, 5, 8, 10))
    return Change(
        f"On {day} {name} gives one of every {share} {things} that are left to a school, rounded down.",
        f"One of every {share} goes to the school on {day}, and {total} / {share}, rounded down, is {total // share}:",
        -(total // share),
    )
