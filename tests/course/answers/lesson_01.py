"""Hello, ranks."""

from lesson_runner import Played

WRONG = {
    "hello.1": [
        (
            "def share(values, rank, size):\n    each = len(values) // size\n"
            "    return values[rank * each : (rank + 1) * each]",
            "are lost",
        ),
        (
            "def share(values, rank, size):\n    each = -(-len(values) // size)\n"
            "    return values[rank * each : (rank + 1) * each]",
            "should have two more",
        ),
        ("def share(values, rank, size):\n    return values", "more than once"),
    ],
    "hello.2": [
        ("def speaks(rank, size):\n    return rank == size", "of 1 rank, none would speak")
    ],
    "hello.3": [
        (
            "def careful(a, b):\n    try:\n        return a / b\n"
            "    except ZeroDivisionError:\n        return None",
            'should give float("inf")',
        ),
        ('def careful(a, b):\n    return 3 if b else float("inf")', "should give"),
        ('def careful(a, b):\n    return a // b if b else float("inf")', "should give"),
    ],
}


def claims(played: Played) -> None:
    assert "I am rank 0 of 2" in played.text("what")
    assert "0–1" in played.text("same") or "0-1" in played.text("same")
    assert played.text("compare").strip() == "in the notebook it is blue"
    assert "red" in played.text("there") and "green" in played.text("there")
    assert "rank 1 has green" in played.text("every")
    assert "the notebook has blue" in played.text("local")
    assert "good morning from rank 1" in played.text("pulled")
    assert "True" in played.text("some-see") and "False" in played.text("some-see")
    assert "ZeroDivisionError" in played.shown["fail"].error
    assert played.text("fail-after").startswith("rank 1 failed first, in line 3: ZeroDivisionError")
    assert "I still have 8.0" in played.text("fail-kept")
