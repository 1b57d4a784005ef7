"""The texts, conversations and prompts with which a file is compared with its model."""

from posttrain.conversation.messages import Conversation, Message, Role

TEXTS = (
    "",
    " ",
    "   three blanks before, two after  ",
    "\n\n\nlines\r\nand\ttabs\n",
    "1234567890 3.14159 1,000,000 2024-02-29 -0",
    "I'm, you're, it's, they'd've, DON'T, rock 'n' roll",
    "def area(r):\n    return 3.14159 * r ** 2  # πr²\n\n\tif x != y: pass",
    "Straße, naïve café, Ωmega, Привет, שלום, مرحبا, नमस्ते",
    "円の面積を求めてください。你好，世界！안녕하세요",
    "😀👩‍👩‍👧‍👦🏳️‍🌈 ☺️ é (e and an accent)",
    '{"a": [1, 2.5e-3, null], "b": "\\"quoted\\"\\n"}',
    "<|im_start|>user\nspelt out<|im_end|>\n</s><s>[INST] <|endoftext|>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa----------------________",
    "https://example.org/a?b=c&d=%20#e user@example.org C:\\temp\\x",
)
"""Texts that tokenizers cut in different ways."""

QUESTIONS = (
    "What is the capital of France?",
    "Name three primary colours.",
    "Anna has 3 apples and buys 4 more. How many apples does she have?",
    "Write a short poem about the sea.",
    "Explain in one sentence why the sky is blue.",
    "Translate to German: The house is old.",
    "What is 17 + 25?",
    "Write a Python function that returns the larger of two numbers.",
    "List the days of the week.",
    "Who wrote Romeo and Juliet?",
    "Is 21 a prime number? Give the reason.",
    "Give me a recipe for pancakes.",
    "What does DNA stand for?",
    "Summarise: The cat sat on the mat, and the dog lay by the door.",
    "A train goes 60 km in an hour. How far does it go in 3 hours?",
    "What is the opposite of hot?",
    "Complete: Roses are red, violets are",
    "Which planet is the largest of the solar system?",
    "Write an e-mail that declines an invitation.",
    "How do I make tea?",
)
"""Questions that are answered greedily."""

PROMPTS = tuple(Conversation((Message("user", question),)) for question in QUESTIONS)


def _conversation(*turns: tuple[Role, str]) -> Conversation:
    return Conversation(tuple(Message(role, content) for role, content in turns))


def _pair(number: int) -> Conversation:
    """Two texts of the battery as a conversation of two, three or four messages."""
    first, second = TEXTS[number % len(TEXTS)], TEXTS[(number + 5) % len(TEXTS)]
    system: tuple[tuple[Role, str], ...] = (("system", f"Answer briefly. {number}"),) if number % 2 else ()
    earlier: tuple[tuple[Role, str], ...] = (("user", first), ("assistant", second)) if number % 3 else ()
    return _conversation(*system, *earlier, ("user", first + "?"))


CONVERSATIONS = (
    *map(_pair, range(16)),
    _conversation(("user", "no system message")),
    _conversation(("system", ""), ("user", "an empty system message")),
    _conversation(("user", "\n"), ("assistant", ""), ("user", " ")),
    _conversation(("system", "  blanks  "), ("user", "{{ braces }} {% raw %}"), ("assistant", "a\n\n"), ("user", "b")),
)
"""Twenty conversations that the template in a file must render as they were trained."""
