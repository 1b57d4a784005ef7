"""The peak of a process is its own."""

import subprocess
import sys

CODE = """
from posttrain.runs.peak_memory import peak_memory_bytes
print(peak_memory_bytes())
block = bytearray(100_000_000)
print(peak_memory_bytes())
del block
print(peak_memory_bytes())
"""


def test_it_grows_with_what_is_taken_and_stays_when_it_is_given_back():
    before, taken, after = peaks()
    assert 95_000_000 < taken - before < 110_000_000
    assert abs(after - taken) < 5_000_000  # the kernel counts in batches of pages


def test_it_knows_nothing_of_the_process_that_started_it():
    small = peaks()[0]
    block = bytearray(500_000_000)
    assert abs(peaks()[0] - small) < 50_000_000
    assert len(block) == 500_000_000


def peaks() -> list[int]:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]
