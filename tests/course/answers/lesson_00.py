"""Start here."""

from lesson_runner import Played

WRONG = {
    "hello.0": [("def hello(rank, size):\n    return f'hello from {rank} of 2'", "it should be")]
}


def claims(played: Played) -> None:
    assert "measured: 8 → 1, 256 → 29, 1024 → 116, 2048 → 1.45e+03" in played.text("why-drawn")
    said = played.text("have")
    for name in ("rankroom", "torch", "tensorflow", "horovod", "deepspeed", "sklearn"):
        assert name in said
    assert "not installed" not in said
    assert "00 Start here" in played.text("progress") and "1 of 1 exercises" in played.text(
        "progress"
    )
    assert "16 Lab on a compute node" in played.text("progress")
