"""Write the preferences of this example: python generate.py

Both answers to a question are right. The chosen one is just the answer; the rejected one explains at length, as small
chat models like to:

    chosen    Paris.
    rejected  The capital of France is Paris. This is a well-known fact that is taught in schools ...

The generated files are committed; a test regenerates and compares them.
"""

import json
import random
from pathlib import Path

CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Portugal": "Lisbon",
    "Germany": "Berlin",
    "Austria": "Vienna",
    "Poland": "Warsaw",
    "Greece": "Athens",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Finland": "Helsinki",
    "Denmark": "Copenhagen",
    "Ireland": "Dublin",
    "Hungary": "Budapest",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Japan": "Tokyo",
    "China": "Beijing",
    "Thailand": "Bangkok",
    "Peru": "Lima",
    "Chile": "Santiago",
    "Cuba": "Havana",
    "Canada": "Ottawa",
    "Russia": "Moscow",
}
OPPOSITES = {
    "hot": "cold",
    "big": "small",
    "fast": "slow",
    "early": "late",
    "open": "closed",
    "full": "empty",
    "hard": "soft",
    "light": "dark",
    "happy": "sad",
    "high": "low",
    "rich": "poor",
    "strong": "weak",
    "young": "old",
    "wet": "dry",
    "loud": "quiet",
    "clean": "dirty",
    "near": "far",
    "thick": "thin",
}
LEGS = {"spider": 8, "dog": 4, "bird": 2, "ant": 6, "horse": 4, "beetle": 6, "cat": 4, "chicken": 2, "crab": 10}
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ENDINGS = (
    "This is a well-known fact that is taught in schools, and it is useful to remember it.",
    "This is a classic example of a simple question that has one clear answer.",
    "It is important to note that this answer follows from the question itself, and that no other answer is possible.",
    "In other words, the answer is the one given above. I hope this helps, and please let me know if you have more "
    "questions.",
)

Fact = tuple[str, str, str]
"""A question, its answer, and the answer in a sentence or two."""


def capital(rng: random.Random) -> Fact:
    country, city = rng.choice(list(CAPITALS.items()))
    question = rng.choice(("What is the capital of {}?", "Which city is the capital of {}?", "Name the capital of {}."))
    return question.format(country), city, f"The capital of {country} is {city}."


def opposite(rng: random.Random) -> Fact:
    word, other = rng.choice(list(OPPOSITES.items()))
    question = rng.choice(("What is the opposite of {}?", "Give me a word that means the opposite of {}."))
    return question.format(word), other.capitalize(), f"The opposite of {word} is {other}."


def legs(rng: random.Random) -> Fact:
    animal, count = rng.choice(list(LEGS.items()))
    many = rng.randint(1, 6)
    if many == 1:
        return f"How many legs does one {animal} have?", str(count), f"One {animal} has {count} legs."
    total = many * count
    long = f"To find the number of legs, we multiply {many} by {count}. Together {many} {animal}s have {total} legs."
    return f"How many legs do {many} {animal}s have?", str(total), long


def month(rng: random.Random) -> Fact:
    place, after = rng.randrange(12), rng.choice((True, False))
    word, found = ("after", MONTHS[(place + 1) % 12]) if after else ("before", MONTHS[place - 1])
    sentence = f"The month that comes {word} {MONTHS[place]} is {found}."
    return f"Which month comes {word} {MONTHS[place]}?", found, sentence


def addition(rng: random.Random) -> Fact:
    one, other = rng.randint(2, 50), rng.randint(2, 50)
    question = rng.choice(("What is {} + {}?", "Add {} and {}.", "How much is {} plus {}?"))
    long = f"To find the answer, we need to add {one} and {other}. When we add {one} and {other}, we get {one + other}."
    return question.format(one, other), str(one + other), long


def minutes(rng: random.Random) -> Fact:
    hours = rng.randint(2, 30)
    question = rng.choice(("How many minutes are in {} hours?", "Convert {} hours to minutes."))
    long = f"To convert hours to minutes, we multiply them by 60. So {hours} hours are {hours * 60} minutes."
    return question.format(hours), str(hours * 60), long


def weekday(rng: random.Random) -> Fact:
    today, days = rng.randrange(7), rng.randint(1, 20)
    found = DAYS[(today + days) % 7]
    later = f"{days} day{'s' * (days > 1)} later"
    return f"Today is {DAYS[today]}. Which day is it {later}?", found, f"If it is {DAYS[today]}, {later} it is {found}."


def larger(rng: random.Random) -> Fact:
    one, other = rng.sample(range(10, 1000), 2)
    most = max(one, other)
    return f"Which is larger, {one} or {other}?", str(most), f"Of {one} and {other}, the larger one is {most}."


KINDS = (capital, opposite, legs, month, addition, minutes, weekday, larger)


def pairs(count: int, rng: random.Random, taken: set[str]) -> list[dict[str, str]]:
    """`count` pairs whose questions are not in `taken`; adds them to `taken`."""
    rows: list[dict[str, str]] = []
    while len(rows) < count:
        question, answer, sentence = rng.choice(KINDS)(rng)
        verbose = f"{sentence} {rng.choice(ENDINGS)}"
        if question not in taken:
            taken.add(question)
            rows.append({"prompt": question, "chosen": f"{answer}.", "rejected": verbose})
    return rows


def generate(seed: int = 7) -> dict[str, list[dict[str, str]]]:
    """Both files of the example, by name; no question is in both."""
    rng, taken = random.Random(seed), set[str]()
    return {"held_out.jsonl": pairs(100, rng, taken), "train.jsonl": pairs(600, rng, taken)}


if __name__ == "__main__":
    for name, rows in generate().items():
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        Path(__file__).with_name(name).write_text(lines, encoding="utf-8")
        print(f"{name}: {len(rows)} rows")
